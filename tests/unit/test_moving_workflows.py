"""The order in which a worker moves workflows on, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.errors import CheckViolation
from sqlalchemy.exc import IntegrityError

from sa_jobqueue.sql.workflows.pruning import Advanced
from sa_jobqueue.worker.claiming import workflows as claiming
from sa_jobqueue.worker.claiming.workflows import MovingWorkflows
from sa_jobqueue.worker.running.run import WorkflowsToAdvance

NOBODY: Any = SimpleNamespace(notify=lambda queue: None)


class Store:
    """Workflows by how many events each has. A step reads at most `room` of them; one `broken` makes each step fail."""

    def __init__(self, events: dict[int, int], *, room: int = 1_000, broken: int | None = None) -> None:
        self.events, self.room, self.broken = events, room, broken

    def advance(self, connection: object, after: Mapping[int, int], *, most: int) -> Advanced:
        if self.broken in after:
            raise IntegrityError("", {}, CheckViolation("a check"))
        left, read = self.room, {}
        for one in after:
            if took := min(left, self.events[one]):
                self.events[one] -= took
                left -= took
                read[one] = 1
        return Advanced(frozenset(() if left else after), frozenset(), read, (), self.room - left)


def moving(store: Store) -> MovingWorkflows:
    touched = WorkflowsToAdvance()
    touched.add(store.events)
    connector: Any = SimpleNamespace(store=store, begin_one=lambda connection: nullcontext())
    return MovingWorkflows(connector, touched, NOBODY, busy=lambda: False)


def test_a_workflow_with_many_events_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a step that it has filled alone, the others come first."""
    monkeypatch.setattr(claiming, "_PAGE", 2)
    store = Store({1: 100_000, 2: 1, 3: 1})
    mover = moving(store)
    for _ in range(3):
        mover.move(NOBODY)
    assert (store.events[2], store.events[3]) == (0, 0)
    assert store.events[1] > 0


def test_one_that_cannot_be_moved_on_does_not_hold_up_others(caplog: pytest.LogCaptureFixture) -> None:
    """Each is then moved alone, until it could be."""
    store = Store({1: 1, 2: 1, 3: 1}, broken=2)
    mover = moving(store)
    for _ in range(4):
        mover.move(NOBODY)
    assert store.events == {1: 0, 2: 1, 3: 0}
    assert [record.getMessage() for record in caplog.records] == ["workflows could not be moved on, from 2 on: a check"]
