"""When the listener of `wait_for` looks at a job without being told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, cast
from unittest.mock import Mock

import pytest

from sa_jobqueue.arguments.ends import JobEnd
from sa_jobqueue.sql.store import Store
from sa_jobqueue.waiting import subscription
from sa_jobqueue.waiting.receivers import Receiver
from sa_jobqueue.waiting.subscription import Subscription, Waiters


class Enough(Exception):
    """The test has seen what it wants to."""


class Clock:
    """Time passes only in `sleep`, of which `slept` keeps how long each was."""

    def __init__(self, most: int) -> None:
        self.now, self.slept, self._most = 1_000.0, list[float](), most

    def monotonic(self) -> float:
        return self.now

    def within(self, seconds: float, connection: object) -> Any:
        return nullcontext()

    def sleep(self, seconds: float) -> set[int]:
        self.slept.append(round(seconds, 6))
        if len(self.slept) == self._most:
            raise Enough
        self.now += seconds
        return set()


class Table:
    """A job that does not end."""

    def __init__(self) -> None:
        self.awaited = set[int]()

    def ends(self, connection: object, ids: Sequence[int]) -> dict[int, JobEnd | None]:
        return dict.fromkeys(ids)

    def wait_for(self, connection: object, ids: Iterable[int], **options: object) -> None:
        self.awaited.update(ids)

    def drop_expired_waits(self, connection: object) -> None:
        """There are none."""


@pytest.mark.parametrize(
    ("listens", "pauses"),
    [(True, [0.02, 0.06, 0.18, 0.54, 1.62, 4.86, 5.0, 5.0]), (False, [0.02, 0.03, 0.045, 0.0675])],
    ids=["it is told", "it is not"],
)
def test_it_looks_soon_and_then_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, listens: bool, pauses: list[float]
) -> None:
    """Counted from when it has said that it waits: what ends the job may not have seen that, and commits soon."""
    clock, table = Clock(len(pauses)), Table()
    monkeypatch.setattr(subscription, "monotonic", clock.monotonic)
    waiters = Mock(is_ending=False, **{"wanted.return_value": {7}})
    looking = Subscription(cast(Waiters, waiters), Mock(), cast(Store, table), cast(Receiver, clock))
    looking._connection = Mock(**{"begin.return_value": nullcontext()})
    looking._listens, looking._schema = listens, "sa_jobqueue"
    with pytest.raises(Enough):
        looking._loop()
    assert clock.slept == pauses
    assert table.awaited == ({7} if listens else set())
