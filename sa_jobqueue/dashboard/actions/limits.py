"""Whose limits or pause a form or an address means: a queue's, a task's, or those of one key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ...errors import OptionError
from ...models import status_literal
from ...rules.lifecycle import JobStatus
from ...rules.limits import MOST_JOBS, KeyLimits, Owner, Rate, read_rate
from ...sql.limits.state import is_keyless, is_later, is_ready
from ...sql.parts import table_of
from ...sql.readings.depths import CAP, list_workers
from ...sql.workers import serves
from ...statements import cancel_jobs, pause, remove_limit, resume, set_limit
from ..query import Query
from ..refusals import BadInput
from ..request import Missing, PageContext
from . import Done, PageAction

#: The fields that say it.
PLACE = ("owner", "name", "key")


@dataclass(frozen=True, slots=True)
class Place:
    """A queue or a task, and perhaps one key of it."""

    owner: Owner
    name: str
    key: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """As statements take it, beside the name."""
        return {"owner": self.owner, "key": self.key}

    @property
    def said(self) -> str:
        """As in "queue mail, key acme"."""
        return f"{self.owner} {self.name}" + (f", key {self.key}" if self.key else "")


def place_of(context: PageContext) -> Place:
    """The place that the viewer names, and may change. Raises BadInput, and Missing for one that belongs to others as well."""
    query = context.query
    owner: Any = query.one("owner", "queue")
    if owner not in get_args(Owner):
        raise BadInput("owner", owner, f"one of {', '.join(get_args(Owner))}")
    if not (name := query.one("name")):
        raise BadInput("name", "", f"the name of a {owner}")
    if not is_mine(context, owner, name):
        raise Missing(f"There is no {owner} {name} that you may change.")
    return Place(owner, name, query.one("key") or None)


def done_to(context: PageContext, place: Place, count: int) -> Done:
    """The result of an action on a queue or a task. It warns if no live worker serves a queue of this name, which may be misspelt."""
    live = [worker.queues for worker in context.connection.execute(list_workers(job=context.job)) if not worker.stale]
    unserved = place.owner == "queue" and bool(live) and not any(serves(queues, place.name) for queues in live)
    return Done(count, of=place.said, apart={"unserved": count} if unserved else {})


def shown_limits(row: Mapping[str, Any]) -> str:
    """The values of a row that a form of limits shows, in one text: the form sends it back, and so says what it has shown."""
    names = ("running", "rate_count", "rate_seconds", "rate_burst", "weight")
    of_keys = tuple(f"key_{name}" for name in names[:-1])
    values = ((name, row.get(name)) for name in (*names, *of_keys))
    return ", ".join(
        f"{name}={value}" for name, value in values if value is not None and (name, value) != ("weight", 1)
    )


def is_mine(context: PageContext, owner: str, name: str) -> bool:
    """Whether the viewer sees all of its jobs. The jobs of a task may be in any queue."""
    if context.access.is_partial:
        return False
    return context.queues is None or (owner == "queue" and name in context.queues)


# ---- What is done to limits: set those of a queue, a task or a key as a form says them, and take them back.

_BURSTS = range(1, 1_000_000_001)


def _set(context: PageContext) -> Done:
    """An empty field takes the limit away. So a form that has not shown all there are is refused."""
    place, query, beside = place_of(context), context.query, context.options.beside
    there = _there(context, place)
    if there != query.one("seen"):
        shown = query.one("seen") or "none"
        expected = f"{there}, which there are" if there else "none: they were removed meanwhile"
        raise BadInput("the limits that the form has shown", shown, expected, there=place.name)
    given: dict[str, Any] = {"running": _running(query, "running"), "rate": _rate(query, "")}
    if place.key is None:
        of_keys = KeyLimits(_running(query, "key_running"), _rate(query, "key_"))
        given["per_key"] = of_keys
    else:
        given["weight"] = query.number("weight", 1, range(1, 1_001))
    try:
        statement = set_limit(place.name, **place.given, **given, limit=beside.limit, limit_key=beside.key)
    except OptionError as error:
        raise BadInput("the limit", place.name, str(error)) from error
    return done_to(context, place, len(context.connection.execute(statement).all()))


def _there(context: PageContext, place: Place) -> str:
    """The limits that there are, as a form says that it has shown them. They stay until the transaction ends.

    A row that is not there is made, without limits: another that makes it, too, is waited for, and its limits are found.
    """
    of = table_of(context.options.beside.limit if place.key is None else context.options.beside.key)
    its = {"owner": place.owner, "name": place.name, **({} if place.key is None else {"key": place.key})}
    context.connection.execute(insert(of).values(its).on_conflict_do_nothing())
    row = context.connection.execute(sa.select(of).filter_by(**its).with_for_update()).mappings().one_or_none()
    return shown_limits({} if row is None else {**row})


def _remove(context: PageContext) -> Done:
    place, beside = place_of(context), context.options.beside
    try:
        statement = remove_limit(place.name, **place.given, limit=beside.limit, limit_key=beside.key)
    except OptionError as error:
        raise BadInput("the limit", place.name, str(error)) from error
    return Done(len(context.connection.execute(statement).all()), of=place.said)


def _running(query: Query, name: str) -> int | None:
    return query.number(name, 0, range(1, MOST_JOBS + 1)) or None


def _rate(query: Query, prefix: str) -> Rate | None:
    name, of_burst = f"{prefix}rate", f"{prefix}burst"
    given = query.one(name)
    burst = query.number(of_burst, 0, _BURSTS) or None
    if not given:
        if burst is not None:
            raise BadInput(of_burst, str(burst), f"nothing: it is that of a rate, and {name} is empty")
        return None
    try:
        return read_rate(given, burst=burst)
    except OptionError as error:
        raise BadInput(name, given, f"a number and a time, as in 500/1m or 20/s: {error}") from error
    except ValueError as error:
        raise BadInput(name, given, "a number and a time, as in 500/1m or 20/s") from error


#: By name.
LIMIT_ACTIONS = {
    action.name: action
    for action in (
        PageAction(
            "set_limit", "Set limits", "The limits of {of} are set. Code does not change them until they are removed.", "limit", _set,
            target=(*PLACE, "running", "rate", "burst", "weight", "key_running", "key_rate", "key_burst"),
            apart={"unserved": "The limits of {of} are set, but no live worker serves it. Is its name right?"},
            unit="limit",
        ),
        PageAction(
            "remove_limit", "Remove", "Removed those of {of}: what code declares holds again, or no limit.", "limit", _remove,
            target=PLACE, unit="limit",
        ),
    )
}  # fmt: skip

# ---- What is done to queues: pause and resume one, which tasks and keys have as well, and cancel all that waits in it.

#: Jobs that are cancelled in one transaction.
_PAGE = 1_000


def _pause(context: PageContext) -> Done:
    place, beside = place_of(context), context.options.beside
    try:
        statement = pause(
            place.name,
            **place.given,
            reason=context.query.one("reason") or None,
            limit=beside.limit,
            limit_key=beside.key,
        )
    except OptionError as error:
        raise BadInput("name", place.name, str(error)) from error
    return done_to(context, place, len(context.connection.execute(statement).all()))


def _resume(context: PageContext) -> Done:
    place, beside = place_of(context), context.options.beside
    try:
        statement = resume(place.name, **place.given, limit=beside.limit, limit_key=beside.key)
    except OptionError as error:
        raise BadInput("name", place.name, str(error)) from error
    return Done(len(context.connection.execute(statement).all()), of=place.said)


def _waiting(context: PageContext, most: int) -> sa.Select[Any]:
    """The ids of jobs that wait in the queue of the form, `most` at most. In no order: each index of queued jobs is read from its front."""
    name = context.query.one("queue")
    if not name:
        raise BadInput("queue", "", "the name of a queue")
    if context.queues is not None and name not in context.queues:
        raise Missing(f"There is no queue {name} that you may change.")
    table = table_of(context.job)
    parts = [
        sa.select(context.job.id).where(kind(table), context.job.queue == name, *context.mine()).limit(most)
        for kind in (is_keyless, is_ready, is_later)
    ]
    some = sa.union_all(*(sa.select(part.subquery()) for part in parts)).subquery("some")
    return sa.select(some.c.id).limit(most)


def _count(context: PageContext) -> int:
    return context.connection.scalar(sa.select(sa.func.count()).select_from(_waiting(context, CAP).subquery())) or 0


def _cancel(context: PageContext) -> Done:
    job = context.job
    ids = list(context.connection.scalars(_waiting(context, _PAGE)))
    if not ids:
        return Done(0)
    still = (job.id.in_(ids), job.status == status_literal(JobStatus.QUEUED), *context.mine())
    rows = context.connection.execute(cancel_jobs(*still, locked="skip", job=job)).all()
    changed = sum(row.changed for row in rows)
    if len(ids) == _PAGE and changed:
        return Done(changed, after=1, of=context.query.one("queue"))  # what was cancelled is not found again
    return Done(changed, left=len(ids) - changed, of=context.query.one("queue"))


#: By name.
QUEUE_ACTIONS = {
    action.name: action
    for action in (
        PageAction(
            "pause", "Pause", "Paused {of}: what runs goes on, and nothing more is started.", "pause", _pause, target=PLACE,
            apart={"unserved": "Paused {of}, which no live worker serves. Is its name right?"}, unit="pause",
        ),
        PageAction("resume", "Resume", "Resumed {of}.", "pause", _resume, target=PLACE, unit="pause"),
        PageAction(
            "cancel_queue", "Cancel all waiting…", "Cancelled {n} of queue {of}.", "discard", _cancel, _count,
            "Cancel {n} waiting {unit} of this queue, also what is due later? What runs goes on. "
            "Type the name of the queue to say that you mean it.",
            careful=True, target=("queue",), typed="queue",
        ),
    )
}  # fmt: skip
