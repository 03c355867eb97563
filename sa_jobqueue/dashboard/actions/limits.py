"""Actions on queues, tasks and their keys: set and remove limits, pause, resume, and cancel all waiting jobs of a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ...errors import OptionError
from ...models import status_literal
from ...rules.lifecycle import JobStatus
from ...rules.limits import MOST_JOBS, KeyLimits, Limits, Owner, Rate, rate_said, read_rate
from ...sql.limits.admin import change_limits
from ...sql.limits.state import is_keyless, is_later, is_ready
from ...sql.limits.use import due_of_queues, ready_of_keys
from ...sql.parts import table_of
from ...sql.readings.depths import CAP, capped, list_workers
from ...sql.workers import serves
from ...statements import cancel_jobs, close_breaker, open_breaker, pause, remove_limit, resume
from ..query import Query
from ..refusals import BadInput
from ..request import Missing, PageContext
from . import Done, PageAction
from .jobs import cancelled

#: The fields of a form that name a place.
PLACE = ("owner", "name", "key")


class Place(NamedTuple):
    """A queue or a task, and perhaps one of its keys."""

    owner: Owner
    name: str
    key: str | None

    def __str__(self) -> str:
        """Return it in words: "queue mail, key acme"."""
        return f"{self.owner} {self.name}" + (f", key {self.key}" if self.key else "")


def place_of(context: PageContext) -> Place:
    """The place that the form names. Raises BadInput, and Missing if not all of its jobs are the viewer's."""
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
    """The result of an action on a queue or a task, with a warning if no live worker serves a queue of this name."""
    live = [worker.queues for worker in context.connection.execute(list_workers(job=context.job)) if not worker.stale]
    unserved = place.owner == "queue" and bool(live) and not any(serves(queues, place.name) for queues in live)
    return Done(count, of=str(place), variants={"unserved": count} if unserved else {})


def shown_limits(row: Mapping[str, Any]) -> str:
    """The limits in a form, as one text, which the form sends back to prove which limits it has shown."""
    names = ("running", "rate_count", "rate_seconds", "rate_burst", "weight")
    values = ((name, row.get(name)) for name in (*names, *(f"key_{name}" for name in names[:-1])))
    return ", ".join(
        f"{name}={value}" for name, value in values if value is not None and (name, value) != ("weight", 1)
    )


def is_mine(context: PageContext, owner: str, name: str) -> bool:
    """Whether the viewer may see all of its jobs. The jobs of a task may be in any queue."""
    if context.access.is_partial:
        return False
    return context.queues is None or (owner == "queue" and name in context.queues)


def _changed(context: PageContext, place: Place, build: Callable[..., Any], field: str, **options: Any) -> int:
    """Execute a statement about the place, and return the number of changed rows. Raises BadInput for the field."""
    tables = {"limit": context.tables.limit, "limit_key": context.tables.key}
    try:
        statement = build(place.name, owner=place.owner, key=place.key, **options, **tables)
    except OptionError as error:
        raise BadInput(field, place.name, str(error)) from error
    return len(context.connection.execute(statement).all())


# ---- Limits.

_BURSTS = range(1, 1_000_000_001)
#: The names of limits in words, if they differ from those of the form.
_WORDS = {"key_running": "running of each key", "key_rate": "rate of each key"}


def _set(context: PageContext) -> Done:
    """Set the limits of the place that differ. An empty field removes a limit, so a form that did not show the current limits is refused."""
    place, query = place_of(context), context.query
    row = _current(context, place)
    if (current := shown_limits(row)) != query.one("seen"):
        shown = query.one("seen") or "none"
        expected = f"the current limits, {current}" if current else "none: they were removed meanwhile"
        raise BadInput("the limits that the form has shown", shown, expected, there=place.name)
    given: dict[str, Any] = {"running": _running(query, "running"), "rate": _rate(query, "")}
    if place.key is None:
        given["per_key"] = KeyLimits(_running(query, "key_running"), _rate(query, "key_"))
    columns = Limits(**given).columns()
    if place.key is not None:
        given["weight"] = columns["weight"] = query.number("weight", 1, range(1, 1_001))
    now, then = in_words(row), in_words(columns)
    if place.key is not None:
        limit = table_of(context.tables.limit)
        of_all = sa.select(limit).where(limit.c.owner == place.owner, limit.c.name == place.name)
        each = as_each_key(context.connection.execute(of_all).mappings().first() or {})
        for words in (now, then):
            words.update({name: text for name, text in each.items() if words[name] == "none"})
    changes = {name: f"{_WORDS.get(name, name)} {now[name]} → {then[name]}" for name in now if now[name] != then[name]}
    if not changes and not current:
        raise BadInput("the form", "no limit", "at least one limit")
    if not changes:
        return Done(0, of=str(place))
    # Not the limits that the form does not show, as rates of named units.
    differ = {name: value for name, value in columns.items() if name in changes or name.rpartition("_")[0] in changes}
    count = _changed(context, place, change_limits, "the limit", columns=differ)
    target = {name: [value] for name, value in place._asdict().items() if value is not None}
    done, said = done_to(context, place, count), list(changes.values())
    change = f"{', '.join(said)}."
    if place.owner == "queue" or place.key is not None:  # the due jobs of a task have no index
        change += f" Waiting behind it: {capped(waiting_at(context, [place]).get(place, 0))}."
    return replace(done, target={**target, "changes": said}, change=change)


def as_each_key(columns: Any) -> dict[str, str]:
    """The limits in words that the row of a queue or task has for each key, by the names that they have in the form of a key."""
    words = in_words(columns)
    found = {name: words[f"key_{name}"] for name in ("running", "rate")}
    return {name: f"{text} as each key" for name, text in found.items() if text != "none"}


def in_words(columns: Mapping[str, Any]) -> dict[str, str]:
    """The limits in a row, by their names in a form."""
    found = {name: f"{columns.get(name) or ''}" for name in ("running", "key_running", "weight")}
    for prefix in ("", "key_"):
        parts = (columns.get(f"{prefix}rate_{part}") for part in ("count", "seconds", "burst"))
        found[f"{prefix}rate"] = rate_said(*parts)
    return {name: text or "none" for name, text in found.items()}


def waiting_at(context: PageContext, places: Sequence[Any]) -> dict[tuple[str, str, str | None], int]:
    """The numbers of due jobs of these places, each with `owner`, `name` and `key`."""
    connection, job = context.connection, context.job
    found: dict[tuple[str, str, str | None], int] = {}
    if queues := [row.name for row in places if row.owner == "queue" and row.key is None]:
        found |= {("queue", row.name, None): row.due for row in connection.execute(due_of_queues(queues, job=job))}
    if others := [row for row in places if row.owner == "task" or row.key is not None]:
        asked = ([getattr(row, part) for row in others] for part in PLACE)
        counted = connection.execute(ready_of_keys(*asked, job=job))
        found |= {(row.owner, row.name, row.key): row.due for row in counted}
    return found


def _current(context: PageContext, place: Place) -> dict[str, Any]:
    """The row with the current limits, locked until the transaction ends; empty if another transaction has just removed it.

    A missing row is inserted without limits, which waits for another transaction that inserts it, and then finds its limits.
    """
    table = table_of(context.tables.limit if place.key is None else context.tables.key)
    columns = {name: value for name, value in place._asdict().items() if value is not None}
    context.connection.execute(insert(table).values(columns).on_conflict_do_nothing())
    row = context.connection.execute(sa.select(table).filter_by(**columns).with_for_update()).mappings().one_or_none()
    return {} if row is None else {**row}


def _remove(context: PageContext) -> Done:
    place = place_of(context)
    return Done(_changed(context, place, remove_limit, "the limit"), of=str(place))


def _running(query: Query, name: str) -> int | None:
    return query.number(name, 0, range(1, MOST_JOBS + 1)) or None


def _rate(query: Query, prefix: str) -> Rate | None:
    name, burst_name = f"{prefix}rate", f"{prefix}burst"
    given = query.one(name)
    burst = query.number(burst_name, 0, _BURSTS) or None
    if not given:
        if burst is not None:
            raise BadInput(burst_name, str(burst), f"nothing: it belongs to a rate, and {name} is empty")
        return None
    try:
        return read_rate(given, burst=burst)
    except ValueError as error:
        reason = f": {error}" if isinstance(error, OptionError) else ""
        raise BadInput(name, given, f"a number and a time, as in 500/1m or 20/s{reason}") from error


LIMIT_ACTIONS = (
    PageAction(
        "set_limit", "Set limits", "The limits of {of} are set. Code does not change them until they are removed.", "limit", _set,
        target=PLACE,
        variants={"unserved": "The limits of {of} are set, but no live worker serves it. Is its name right?"},
        unit="limit",
    ),
    PageAction(
        "remove_limit", "Remove", "Removed the limits of {of}: the limits that code declares apply again.", "limit", _remove,
        target=PLACE, unit="limit",
    ),
)  # fmt: skip

# ---- Queues: pause and resume, also for tasks and keys, and cancel all waiting jobs.

#: Jobs that are cancelled in one transaction, and the most characters of a reason.
_PAGE, _REASON = 1_000, 1_000


def _pause(context: PageContext) -> Done:
    place, reason = place_of(context), context.query.text("reason", _REASON) or None
    return done_to(context, place, _changed(context, place, pause, "name", reason=reason))


def _resume(context: PageContext) -> Done:
    place = place_of(context)
    return Done(_changed(context, place, resume, "name"), of=str(place))


def _waiting(context: PageContext, most: int) -> sa.Select[Any]:
    """The ids of at most `most` waiting jobs of the form's queue, unordered: each index of queued jobs is read from its front."""
    if not (name := context.query.one("queue")):
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
    return context.count(_waiting(context, CAP))


def _cancel(context: PageContext) -> Done:
    job, name = context.job, context.query.one("queue")
    ids = list(context.connection.scalars(_waiting(context, _PAGE)))
    if not ids:
        return Done(0, of=name)
    still_queued = (job.id.in_(ids), job.status == status_literal(JobStatus.QUEUED), *context.mine())
    rows = context.connection.execute(cancel_jobs(*still_queued, locked="skip", job=job)).all()
    changed = [row.id for row in rows if row.changed]
    more = cancelled(context, changed)
    if len(ids) == _PAGE and changed:
        return Done(len(changed), after=1, of=name, more=more)  # cancelled jobs are not found again
    return Done(len(changed), left=len(ids) - len(changed), of=name, more=more)


def _open_breaker(context: PageContext) -> Done:
    return _set_breaker(context, open_breaker)


def _close_breaker(context: PageContext) -> Done:
    return _set_breaker(context, close_breaker)


def _set_breaker(context: PageContext, build: Callable[..., Any]) -> Done:
    place = place_of(context)
    if place.owner != "task":
        raise BadInput("owner", place.owner, "task: a queue has no breaker")
    try:
        statement = build(place.name, key=place.key, who="", job=context.job)
    except OptionError as error:
        raise BadInput("name", place.name, str(error)) from error
    return Done(int(bool(context.connection.scalar(statement))), of=str(place))


QUEUE_ACTIONS = (
    PageAction(
        "pause", "Pause", "Paused {of}: running jobs go on, and no more jobs start.", "pause", _pause, target=PLACE,
        variants={"unserved": "Paused {of}, which no live worker serves. Is its name right?"}, unit="pause",
    ),
    PageAction("resume", "Resume", "Resumed {of}.", "pause", _resume, target=PLACE, unit="pause"),
    PageAction(
        "open_breaker", "Open breaker", "Opened the breaker of {of}: no job starts for 2 minutes, then one job probes.", "pause",
        _open_breaker, target=PLACE, unit="breaker",
    ),
    PageAction(
        "close_breaker", "Close breaker", "Closed the breaker of {of}: its jobs start again.", "pause", _close_breaker,
        target=PLACE, unit="breaker",
    ),
    PageAction(
        "cancel_queue", "Cancel all waiting…", "Cancelled {n} of queue {of}.", "discard", _cancel, _count,
        "Cancel {n} waiting {unit} of this queue, including jobs that are due later? Running jobs go on. "
        "Type the name of the queue to confirm.",
        careful=True, target=("queue",), typed="queue", undo="undo_cancel",
    ),
)  # fmt: skip
