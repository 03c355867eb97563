"""What is done to queues: pause and resume one, which tasks and keys have as well, and cancel all that waits in it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ..errors import OptionError
from ..lifecycle import JobStatus
from ..models import status_literal
from ..statements import cancel_jobs, pause, resume
from ..statements.depths import CAP
from ..statements.limits import is_keyless, is_later, is_ready
from ..statements.parts import table_of
from .deeds import Deed, Done
from .look import Look
from .page import Missing
from .places import PLACE, done_to, place_of
from .refusals import BadInput
from .strings import text

__all__ = ["QUEUE_DEEDS"]

#: Jobs that are cancelled in one transaction.
_PAGE = 1_000


def _pause(look: Look) -> Done:
    place, beside = place_of(look), look.options.beside
    try:
        statement = pause(
            place.name, **place.given, reason=look.query.one("reason") or None, limit=beside.limit, limit_key=beside.key
        )
    except OptionError as error:
        raise BadInput("name", place.name, str(error)) from error
    return done_to(look, place, len(look.connection.execute(statement).all()))


def _resume(look: Look) -> Done:
    place, beside = place_of(look), look.options.beside
    try:
        statement = resume(place.name, **place.given, limit=beside.limit, limit_key=beside.key)
    except OptionError as error:
        raise BadInput("name", place.name, str(error)) from error
    return Done(len(look.connection.execute(statement).all()), of=place.said)


def _waiting(look: Look, most: int) -> sa.Select[Any]:
    """The ids of jobs that wait in the queue of the form, `most` at most. In no order: each index of queued jobs is read from its front."""
    name = look.query.one("queue")
    if not name:
        raise BadInput("queue", "", "the name of a queue")
    if look.queues is not None and name not in look.queues:
        raise Missing(text("missing.place", owner="queue", name=name))
    table = table_of(look.job)
    parts = [
        sa.select(look.job.id).where(kind(table), look.job.queue == name, *look.mine()).limit(most)
        for kind in (is_keyless, is_ready, is_later)
    ]
    some = sa.union_all(*(sa.select(part.subquery()) for part in parts)).subquery("some")
    return sa.select(some.c.id).limit(most)


def _count(look: Look) -> int:
    return look.connection.scalar(sa.select(sa.func.count()).select_from(_waiting(look, CAP).subquery())) or 0


def _cancel(look: Look) -> Done:
    job = look.job
    ids = list(look.connection.scalars(_waiting(look, _PAGE)))
    if not ids:
        return Done(0)
    still = (job.id.in_(ids), job.status == status_literal(JobStatus.QUEUED), *look.mine())
    rows = look.connection.execute(cancel_jobs(*still, locked="skip", job=job)).all()
    changed = sum(row.changed for row in rows)
    if len(ids) == _PAGE and changed:
        return Done(changed, after=1, of=look.query.one("queue"))  # what was cancelled is not found again
    return Done(changed, left=len(ids) - changed, of=look.query.one("queue"))


#: By name.
QUEUE_DEEDS = {
    deed.name: deed
    for deed in (
        Deed("pause", "pause", _pause, target=PLACE, apart=("unserved",), unit="pause"),
        Deed("resume", "pause", _resume, target=PLACE, unit="pause"),
        Deed("cancel_queue", "discard", _cancel, _count, careful=True, target=("queue",), typed="queue"),
    )
}
