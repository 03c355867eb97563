"""Ending jobs that wait and are not to be started any more: their expiry or their deadline is over."""

from __future__ import annotations

from sqlalchemy import Executable, Text, and_, bindparam, func, literal_column, select, true, update
from sqlalchemy.dialects.postgresql import JSONB

from ..lifecycle import DEADLINE_OVER, EXPIRED, TRANSITIONS, Event, JobStatus, Rules
from ..models import Job, UniqueKey, status_literal
from ._parts import members, table_of
from .apply import append_error
from .ends import ended, told_one
from .unique import given_back, key_of

__all__ = ["end_expired", "end_overdue"]


def end_expired(*, limit: int, job: type[Job] = Job, keys: type[UniqueKey] = UniqueKey) -> Executable:
    """Cancel at most `limit` jobs that were not started by their expiry, except those that are locked. Returns their ids."""
    table = table_of(job)
    return _end(
        Event.CANCEL,
        job,
        keys,
        limit,
        expiry=True,
        which=and_(table.c.attempt == literal_column("0"), table.c.rescues == literal_column("0")),
    )


def end_overdue(*, limit: int, job: type[Job] = Job, keys: type[UniqueKey] = UniqueKey) -> Executable:
    """The same for jobs whose deadline is over: they fail."""
    return _end(Event.DISCARD, job, keys, limit, expiry=False, which=true())


def _end(event: Event, job: type[Job], keys: type[UniqueKey], limit: int, *, expiry: bool, which: object) -> Executable:
    table = table_of(job)
    time = table.c.expires_at if expiry else table.c.deadline_at
    waits = table.c.status == status_literal(JobStatus.QUEUED)
    over = (
        select(table.c.id, key_of(table).label("key"))
        .where(waits, time <= func.now(), which)  # type: ignore[arg-type]
        .order_by(time)
        .limit(bindparam("page", limit))
        .with_for_update(key_share=True, skip_locked=True)
        .cte("over")
        .prefix_with("MATERIALIZED")
    )
    error, rules = (EXPIRED if expiry else DEADLINE_OVER), Rules()
    note = func.jsonb_build_object(
        literal_column("'type'"), bindparam("error_type", error.type, Text),
        literal_column("'message'"), bindparam("error_message", error.message, Text),
        literal_column("'traceback'"), literal_column("''"),
        type_=JSONB,
    )  # fmt: skip
    return (
        update(table)
        .where(members(table.c.id, select(over.c.id)), waits)
        .values(
            **ended(
                status_literal(TRANSITIONS[JobStatus.QUEUED, event]),
                retain=rules.retain if expiry else rules.retain_failed,
            ),
            errors=append_error(table, note),
        )
        .returning(told_one(table))
        .add_cte(*given_back([over], keys))
    )
