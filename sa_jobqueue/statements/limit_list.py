"""The limits that there are, with what runs and waits now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
    union_all,
)

from ..lifecycle import JobStatus
from ..models import Job, JobMixin, KeyRow, LimitRow, LimitState, status_literal
from .beside import with_companions
from .depths import CAP
from .limits import is_keyless, is_later, is_ready
from .parts import table_of

__all__ = ["list_limits"]

#: What limits, and what else is shown of them.
_LIMITS = ("running", "rate_count", "rate_seconds", "rate_burst")
_OF_OWNERS = (
    "key_running", "key_rate_count", "key_rate_seconds", "key_rate_burst", "strict", "when_full", "max_waiting", "held", "declared",
)  # fmt: skip
_PAUSE = ("paused_at", "pause_reason")


@with_companions
def list_limits(
    *,
    job: type[JobMixin] = Job,
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
    limit_state: type[LimitState] = LimitState,
) -> Select[Any]:
    """A row per queue and task that has limits or is paused, and behind each a row per key that has its own.

    The columns are those of `LimitRow` and `KeyRow`; `key` is NULL in the rows of queues and tasks. Beside them: `runs` and `waits`,
    how many of its jobs run and are queued now, each counted up to 10,001; `blocked_until`, until when they wait because a handler
    has said so; and `now`.
    """
    owners, keys, state = table_of(limit), table_of(limit_key), table_of(limit_state)
    of_owners = select(
        owners.c.owner,
        owners.c.name,
        cast(null(), Text).label("key"),
        *(owners.c[name] for name in (*_LIMITS, *_OF_OWNERS, *_PAUSE)),
        cast(null(), Integer).label("weight"),
        *_numbers(owners, job),
    )
    of_keys = select(
        keys.c.owner,
        keys.c.name,
        keys.c.key,
        *(keys.c[name] for name in _LIMITS),
        *(cast(null(), owners.c[name].type).label(name) for name in _OF_OWNERS),
        *(keys.c[name] for name in _PAUSE),
        keys.c.weight,
        *_numbers(keys, job, table_of(job).c.concurrency_key == keys.c.key),
    )
    found = union_all(of_owners, of_keys).subquery("found")
    key = func.coalesce(found.c.key, literal_column("''"))
    its_own = and_(state.c.owner == found.c.owner, state.c.name == found.c.name, state.c.key == key)
    return (
        select(
            *found.c, limit_state.blocked_until, func.now().label("now")
        )  # of the class, by which a session may be bound
        .select_from(found.outerjoin(state, its_own))
        .order_by(found.c.owner, found.c.name, found.c.key.nulls_first())
    )


def _numbers(of: Any, job: type[JobMixin], *of_key: ColumnElement[bool]) -> list[ColumnElement[int]]:
    """How many jobs of each row of `of` run, and how many wait. Those that wait are in three indexes: of jobs without a key, of those
    with one that are ready, and of the others.
    """
    columns = table_of(job).c
    running = [columns.status == status_literal(JobStatus.RUNNING)]
    ready, later = [is_ready(table_of(job))], [is_later(table_of(job))]
    keyless = [is_keyless(table_of(job))]
    waiting = [ready, later] if of_key else [keyless, ready, later]

    def number(its: ColumnElement[bool], parts: Sequence[Sequence[ColumnElement[bool]]]) -> ColumnElement[int]:
        pages = [
            select(columns.id).where(*part, its, *of_key).limit(literal_column(str(CAP))).correlate(of)
            for part in parts
        ]
        counts = [select(func.count()).select_from(page.subquery()).scalar_subquery() for page in pages]
        return func.least(sum(counts[1:], start=counts[0]), literal_column(str(CAP)))

    def by_owner(parts: Sequence[Sequence[ColumnElement[bool]]]) -> ColumnElement[int]:
        of_task = number(columns.task == of.c.name, parts)
        return case((of.c.owner == literal_column("'queue'"), number(columns.queue == of.c.name, parts)), else_=of_task)

    return [by_owner([running]).label("runs"), by_owner(waiting).label("waits")]
