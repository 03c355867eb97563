"""What becomes of outcomes that are in doubt."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from sa_jobqueue.rules.lifecycle import Change, Event, JobStatus
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.worker.running.writer import OutcomeWriter


class Refused(Exception):
    """A row is to blame."""

    sqlstate = "23514"


def test_an_outcome_that_can_never_be_written_is_in_doubt_no_more() -> None:
    """Else the worker would write all outcomes apart from claims until its end."""

    def apply(*_: object) -> Any:
        raise IntegrityError("UPDATE", {}, Refused("no"))

    store: Any = SimpleNamespace(apply=apply)
    connection: Any = None
    ended: list[Answer] = []
    writer = OutcomeWriter(lambda changes, answer: ended.append(answer), store=store)
    change = Change(1, 7, Event.COMPLETE, JobStatus.COMPLETED, JobStatus.COMPLETED)
    writer.doubt([change])

    writer.write_apart(nullcontext, connection, [change])

    assert (ended, writer.in_doubt) == ([Answer.LOST], {})


def test_each_commit_whose_answer_was_lost_may_be_the_one_that_has_written() -> None:
    """The server stops: the answer to a handler's commit is lost, and then that to the writer's, which says something else."""

    def broken(*_: object) -> Any:
        raise OperationalError("UPDATE", {}, Exception("the connection is lost"), connection_invalidated=True)

    completed = Change(1, 7, Event.COMPLETE, JobStatus.COMPLETED, JobStatus.COMPLETED)
    retried = Change(1, 7, Event.RETRY, JobStatus.QUEUED, JobStatus.CANCELLED)
    doubted: list[Change] = []

    def written_before(connection: object, changes: list[Change]) -> list[Change]:
        doubted.extend(changes)
        return [completed]

    store: Any = SimpleNamespace(apply=broken, written_before=written_before)
    connection: Any = None
    ended: list[tuple[list[Change], Answer]] = []
    writer = OutcomeWriter(lambda changes, answer: ended.append((changes, answer)), store=store)
    writer.doubt([completed])
    for _ in range(2):
        with pytest.raises(OperationalError):
            writer.write_apart(nullcontext, connection, [retried])
        assert writer.take(10) == [retried]
    store.apply = lambda *_: {1: Answer.LOST}

    writer.write_apart(nullcontext, connection, [retried])

    assert doubted == [completed, retried]
    assert (ended, writer.in_doubt) == ([([completed], Answer.APPLIED)], {})
