"""What a worker knows of the limits, and whether that is still so.

A plain claim keeps no limits. So each says which versions of the limits its worker has read, and fails where there are others; and where one
of its queues has jobs with keys. For a queue with neither that is one look at an empty table and two probes of an empty index per claim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from ..lifecycle import Event, sources
from ..limits import Limits
from ..models import TASK_GROUP, Job, JobMixin, KeyRow, LimitRow, schema_function, status_in
from .beside import with_companions
from .parts import array, rows, table_of

__all__ = [
    "FIRST_KEY",
    "LIMITS_CHANGED",
    "is_keyless",
    "is_later",
    "is_queued",
    "is_ready",
    "knows_limits",
    "limits_nothing",
    "read_limits",
]

#: All keys that users give begin here; below are those of limited tasks, see TASK_GROUP.
FIRST_KEY: sa.ColumnElement[str] = sa.literal_column(f"chr({ord(TASK_GROUP) + 1})", sa.Text)
#: The SQLSTATE of a claim that does not know the limits that there are.
LIMITS_CHANGED = "SJQ03"


def _waits(table: sa.Table) -> sa.ColumnElement[bool]:
    return status_in(table.c.status, sources(Event.CLAIM))


def _with_key(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.concurrency_key.is_not(None), _waits(table))


def is_keyless(table: sa.Table) -> sa.ColumnElement[bool]:
    """Whether a job waits that has no key: as the index `job_claim_idx` says it."""
    return sa.and_(_waits(table), table.c.concurrency_key.is_(None))


def is_ready(table: sa.Table) -> sa.ColumnElement[bool]:
    """Whether a job with a key may take its turn: as the index `job_key_ready_idx` says it."""
    return sa.and_(_with_key(table), table.c.run_at <= sa.func.greatest(table.c.created_at, table.c.ready_at))


def is_later(table: sa.Table) -> sa.ColumnElement[bool]:
    """Whether it is not yet: as the index `job_key_later_idx` says it."""
    return sa.and_(_with_key(table), table.c.run_at > sa.func.greatest(table.c.created_at, table.c.ready_at))


def is_queued(table: sa.Table) -> sa.ColumnElement[bool]:
    """Whether a job is queued, said so that the three indexes of queued jobs can be used for it. No index has all of them."""
    return sa.or_(is_keyless(table), is_ready(table), is_later(table))


def knows_limits(table: sa.Table, limit: sa.Table, given: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    """True; or the statement fails, because there are other limits than those `given`, or jobs with keys in one of the queues.

    The server evaluates it once per execution.
    """
    versions = sa.select(sa.func.bit_xor(limit.c.version, type_=sa.BigInteger)).scalar_subquery()
    known = sa.bindparam("known_limits", given["known_limits"], sa.BigInteger)
    ours = table.c.queue == sa.func.any(array("queue_names", given["queue_names"], sa.Text()))
    ready = sa.select(sa.literal_column("true", sa.Boolean)).select_from(table).where(ours, is_ready(table)).exists()
    due = (
        sa.select(sa.literal_column("true", sa.Boolean))
        .select_from(table)
        .where(ours, is_later(table), table.c.run_at <= sa.func.now())
        .exists()
    )
    # The argument keeps the planner from calling the function.
    failed = schema_function("limits_changed", table.schema, versions, of=sa.Boolean())
    return sa.case(
        (sa.and_(versions.is_not_distinct_from(known), sa.not_(ready), sa.not_(due)), sa.true()), else_=failed
    )


def limits_nothing(limit: sa.Table) -> sa.ColumnElement[bool]:
    """Whether a row of `LimitRow` limits nothing, and is no pause."""
    unsaid = (limit.c[name].is_not_distinct_from(value) for name, value in Limits().columns().items())
    return sa.and_(limit.c.paused_at.is_(None), *unsaid)


@with_companions
def read_limits(
    *,
    queues: Collection[str],
    job: type[JobMixin] = Job,
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
) -> sa.Executable:
    """Read where there are limits, which `claim_jobs` takes no account of.

    Returns one row: `version`, of all limits together, NULL if there are none; `queues`, those of the given ones that have limits, or are
    paused, or have jobs with keys that wait; `tasks`, all that have limits, or keys that have. Both are NULL if there are none.
    """
    table, limits, keys = table_of(job), table_of(limit), table_of(limit_key)
    asked = rows("asked", name=array("queue_names", list(queues), sa.Text()))
    some = sa.select(sa.literal_column("true", sa.Boolean))
    waiting = some.select_from(table).where(table.c.queue == asked.c.name).correlate(asked)
    said = some.where(limits.c.owner == sa.literal_column("'queue'"), limits.c.name == asked.c.name).correlate(asked)
    ways = (said, waiting.where(is_ready(table)), waiting.where(is_later(table)))
    limited = (
        sa.select(sa.func.array_agg(asked.c.name)).where(sa.or_(*(way.exists() for way in ways))).scalar_subquery()
    )
    of_task = limits.c.owner == sa.literal_column("'task'")
    # The row of a task stays when the last of its keys is resumed.
    some_key = some.where(keys.c.owner == limits.c.owner, keys.c.name == limits.c.name).correlate(limits).exists()
    limited_tasks = sa.select(sa.func.array_agg(limits.c.name)).where(
        of_task, sa.or_(sa.not_(limits_nothing(limits)), some_key)
    )
    version = sa.select(sa.func.bit_xor(limits.c.version, type_=sa.BigInteger)).scalar_subquery()
    return sa.select(version.label("version"), limited.label("queues"), limited_tasks.scalar_subquery().label("tasks"))
