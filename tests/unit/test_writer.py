"""What becomes of outcomes that are in doubt."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from sqlalchemy.exc import IntegrityError

from sa_jobqueue.lifecycle import Change, Event, JobStatus
from sa_jobqueue.store import Answer
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
