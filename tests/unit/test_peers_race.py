"""The race against other queues: a drain that was not honest is no figure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmarks.peers.race import Contestant, Runner, Stuck, _check
from tests.benchmarks.peers.runners.common import Peer, Way

PEER = Peer("Some queue", "postgresql", (), {"way": Way("async", "")}, "unfinished", 3, "", finished="finished")
ONCE = b"\1\1\1"


def check(marks: bytes, **counts: int) -> None:
    """What the driver does after a drain of three jobs, with these counts of the broker."""
    broker: Any = SimpleNamespace(count=({"unfinished": 0, "finished": 3} | counts).__getitem__)
    _check(Contestant(Runner("on_some", "python", PEER, {}), "way", 1, 3), marks, broker)


def test_a_drain_in_which_each_job_ran_once_counts() -> None:
    """It raises nothing."""
    check(ONCE)


@pytest.mark.parametrize("marks", [b"\1\2\1", b"\1\0\1"])
def test_a_job_that_ran_twice_or_not_at_all_is_an_error(marks: bytes) -> None:
    """The board tells."""
    with pytest.raises(Stuck, match="1 of 3 jobs did not run exactly once"):
        check(marks)


def test_a_completion_that_is_not_on_record_is_an_error() -> None:
    """What the handlers say is compared with what the peer says."""
    with pytest.raises(Stuck, match="2 of 3 jobs are on record"):
        check(ONCE, finished=2)


def test_a_job_that_came_back_is_an_error() -> None:
    """The workers' end gave nothing back to the queue."""
    with pytest.raises(Stuck, match="1 jobs are unfinished again"):
        check(ONCE, unfinished=1)
