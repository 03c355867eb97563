"""The children that a worker keeps, and what one child has open."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sa_jobqueue.worker.children import child as child_module
from sa_jobqueue.worker.children import runner as pool
from sa_jobqueue.worker.children.child import Child, ChildUnavailable
from sa_jobqueue.worker.children.loading import ChildSetup, Maker
from sa_jobqueue.worker.children.runner import Children

MIB = 2**20


class Stub:
    """A child without a process."""

    def __init__(self) -> None:
        self.jobs = 0
        self.pid = id(self)
        self.memory = self.memory_unused = 60 * MIB
        self.ended = self.killed = self.asked_to_leave = False
        self.look: Callable[[], object] = lambda: None

    def begin(self, setup: ChildSetup) -> None:
        """It is ready at once."""

    def is_ready(self) -> bool:
        return not self.ended

    def resident(self) -> int:
        return self.memory

    def leave(self) -> None:
        self.asked_to_leave = True

    def has_ended(self) -> bool:
        self.look()
        return False

    def kill(self) -> None:
        self.killed = True

    def end(self, patience: float = 0.0) -> str:
        self.ended = True
        return "ended"


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    monkeypatch.setattr(pool, "Child", Stub)
    setup = ChildSetup(
        url=None,
        maker=Maker.NONE,
        translate=(),
        pooled=True,
        idle=None,
        lease=30.0,
        max_rescues=5,
        log_jobs=False,
        job=("a", "b"),
    )
    made = Children(setup, max_jobs=2)
    yield made
    made.close()


def taken(children: Children, limit: int | None = None) -> Any:
    return children.take(limit)


def test_a_child_is_used_again_whatever_the_application_needs_by_itself(children: Children) -> None:
    """Large libraries take more than half of the limit in a new child, too."""
    first = taken(children, 100 * MIB)
    first.memory += 5 * MIB
    children.give_back(first)
    assert taken(children, 100 * MIB) is first


def test_a_child_that_keeps_what_another_job_needed_is_replaced(children: Children) -> None:
    """The next job would be killed for it. One without a limit may run there."""
    first = taken(children)
    first.memory += 30 * MIB
    children.give_back(first)
    assert taken(children) is first
    children.give_back(first)
    second = taken(children, 100 * MIB)
    assert second is not first
    assert first.asked_to_leave


def test_a_child_that_leaves_while_the_worker_does_is_ended(children: Children) -> None:
    """It is looked at just as the children are closed."""
    first = taken(children)
    first.jobs = 2
    first.look = children.close
    children.give_back(first)
    assert (first.killed, first.ended) == (True, True)


def test_a_child_with_its_last_job_is_ended_after_the_worker_has_left(children: Children) -> None:
    """Nothing would look at it again."""
    first = taken(children)
    first.jobs = 2
    children.close()
    children.give_back(first)
    assert first.ended
    with pytest.raises(ChildUnavailable, match="the worker leaves"):
        taken(children)


OPEN = Path("/proc/self/fd")


def descriptors() -> set[str]:
    return {one.name for one in OPEN.iterdir()}


@pytest.mark.skipif(not OPEN.is_dir(), reason="the system does not list descriptors")
@pytest.mark.parametrize("pipes", [0, 1])
def test_a_child_for_which_there_are_no_descriptors_is_not_to_be_had(
    monkeypatch: pytest.MonkeyPatch, pipes: int
) -> None:
    """Its job goes back, and what was open for it is closed."""
    made: list[tuple[int, int]] = []
    pipe = os.pipe

    def only_some() -> tuple[int, int]:
        if len(made) == pipes:
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(pipe())
        return made[-1]

    monkeypatch.setattr(os, "pipe", only_some)
    before = descriptors()
    with pytest.raises(ChildUnavailable, match="Too many open files"):
        Child()
    assert descriptors() == before


def test_a_process_that_is_forked_twice_keeps_what_it_has_opened_between() -> None:
    """As a daemon does it. What the first fork has closed of a child is closed once; its number is another's by then."""
    child = Child()
    try:
        forked = os.fork()
        if forked == 0:
            code = 1
            try:
                opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
                child_module._let_go()  # as the second fork does
                for number in opened:
                    os.fstat(number)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    finally:
        child.end()
