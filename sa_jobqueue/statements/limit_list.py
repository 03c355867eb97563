"""The limits that there are, with what runs and waits now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

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
) -> sa.Select[Any]:
    """A row per queue and task that has limits or is paused, and behind each a row per key that has its own.

    The columns are those of `LimitRow` and `KeyRow`; `key` is NULL in the rows of queues and tasks. Beside them: `runs` and `waits`,
    how many of its jobs run and are queued now, each counted up to 10,001; `blocked_until`, until when they wait because a handler
    has said so; and `now`.
    """
    owners, keys, state = table_of(limit), table_of(limit_key), table_of(limit_state)
    of_owners = sa.select(
        owners.c.owner,
        owners.c.name,
        sa.cast(sa.null(), sa.Text).label("key"),
        *(owners.c[name] for name in (*_LIMITS, *_OF_OWNERS, *_PAUSE)),
        sa.cast(sa.null(), sa.Integer).label("weight"),
        *_numbers(owners, job),
    )
    of_keys = sa.select(
        keys.c.owner,
        keys.c.name,
        keys.c.key,
        *(keys.c[name] for name in _LIMITS),
        *(sa.cast(sa.null(), owners.c[name].type).label(name) for name in _OF_OWNERS),
        *(keys.c[name] for name in _PAUSE),
        keys.c.weight,
        *_numbers(keys, job, table_of(job).c.concurrency_key == keys.c.key),
    )
    found = sa.union_all(of_owners, of_keys).subquery("found")
    key = sa.func.coalesce(found.c.key, sa.literal_column("''"))
    its_own = sa.and_(state.c.owner == found.c.owner, state.c.name == found.c.name, state.c.key == key)
    return (
        sa.select(
            *found.c, limit_state.blocked_until, sa.func.now().label("now")
        )  # of the class, by which a session may be bound
        .select_from(found.outerjoin(state, its_own))
        .order_by(found.c.owner, found.c.name, found.c.key.nulls_first())
    )


def _numbers(of: Any, job: type[JobMixin], *of_key: sa.ColumnElement[bool]) -> list[sa.ColumnElement[int]]:
    """How many jobs of each row of `of` run, and how many wait. Those that wait are in three indexes: of jobs without a key, of those
    with one that are ready, and of the others.
    """
    columns = table_of(job).c
    running = [columns.status == status_literal(JobStatus.RUNNING)]
    ready, later = [is_ready(table_of(job))], [is_later(table_of(job))]
    keyless = [is_keyless(table_of(job))]
    waiting = [ready, later] if of_key else [keyless, ready, later]

    def number(its: sa.ColumnElement[bool], parts: Sequence[Sequence[sa.ColumnElement[bool]]]) -> sa.ColumnElement[int]:
        pages = [
            sa.select(columns.id).where(*part, its, *of_key).limit(sa.literal_column(str(CAP))).correlate(of)
            for part in parts
        ]
        counts = [sa.select(sa.func.count()).select_from(page.subquery()).scalar_subquery() for page in pages]
        return sa.func.least(sum(counts[1:], start=counts[0]), sa.literal_column(str(CAP)))

    def by_owner(parts: Sequence[Sequence[sa.ColumnElement[bool]]]) -> sa.ColumnElement[int]:
        of_task = number(columns.task == of.c.name, parts)
        return sa.case(
            (of.c.owner == sa.literal_column("'queue'"), number(columns.queue == of.c.name, parts)), else_=of_task
        )

    return [by_owner([running]).label("runs"), by_owner(waiting).label("waits")]
