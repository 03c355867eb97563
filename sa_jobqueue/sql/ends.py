"""How a job ends, and the fence of each write that follows a claim: written here once, and compiled into every statement.

Everything else that must happen when a job ends belongs in `apply_changes`, the general statement, and nowhere else. The
faster completions (`complete_jobs`, `complete_job`, `delete_completed`, and the SQL function `complete_job` of the
schema) write `ended()`, call `notify_waiters()`, and do no more. So `Change.plain` must be false for a job that needs more than that, and
the claim must already return what tells such a job apart: all other jobs pay nothing for it.

>>> from sa_jobqueue.rules.lifecycle import JobStatus
>>> from sa_jobqueue.models import status_literal
>>> sorted(ended(status_literal(JobStatus.COMPLETED), retain=60))
['finished_at', 'lease_expires_at', 'purge_at', 'result', 'status']
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import array as pg_array

from ..models import schema_function, status_in
from ..rules.lifecycle import HELD
from .parts import ONE, in_seconds


def at_end() -> sa.ColumnElement[Any]:
    """When a job ended: as it is written. The now() of a handler's transaction, or an operator's, is when that began."""
    return sa.func.statement_timestamp(type_=sa.DateTime(timezone=True))


def ended(
    status: sa.ColumnElement[Any],
    *,
    retain: sa.ColumnElement[Any] | float | None,
    result: sa.ColumnElement[Any] | None = None,
    only: sa.ColumnElement[bool] | None = None,
    of: sa.FromClause | None = None,
) -> dict[str, sa.ColumnElement[Any]]:
    """The SET clause of an end, by column. `retain`: seconds until the row may be deleted; None, or NULL: never.

    `only`: which of the rows end, in a statement that writes others, too. `status` and `result` then speak of both kinds,
    and a row that does not end has no time of an end. `of`: the table, where there may be members of workflows among them: these are
    deleted with their workflow, and may have been blocked.
    """
    if retain is None:
        purge_at: sa.ColumnElement[Any] = sa.null()
    else:
        seconds = retain if isinstance(retain, sa.ColumnElement) else sa.literal_column(str(float(retain)))
        purge_at = in_seconds(seconds, after=at_end())
    if of is not None:
        purge_at = sa.case((of.c.workflow_id.is_(None), purge_at))
    end = {
        "status": status,
        "finished_at": at_end() if only is None else sa.case((only, at_end())),
        "purge_at": purge_at if only is None else sa.case((only, purge_at)),
        "lease_expires_at": sa.null(),
        "result": sa.null() if result is None else result,
    }
    return end if of is None else {**end, "blocked_by": sa.null()}


def notify_waiters(ids: sa.ColumnElement[Any], *, of: sa.FromClause) -> sa.ColumnElement[Any]:
    """The array `ids` of jobs `of` this table that have ended; evaluating it notifies the programs that wait for them, at the commit.

    A gate, which is read once, tells whether any job is awaited at all.
    """
    schema = of.schema if isinstance(of, sa.Table) else None
    awaited = schema_function("any_awaited", schema, of=sa.Boolean())
    return sa.case((awaited, schema_function("tell_ended", schema, ids, of=ids.type)), else_=ids)


def ended_id(table: sa.Table, *, deleted: bool = False, follows: bool = False) -> sa.ColumnElement[int]:
    """The id for a RETURNING. Its evaluation notifies the programs that wait for the job, if the job has ended or is `deleted`.

    `follows`: its evaluation also enqueues the follow-up of a job that has completed or failed.
    """
    told: sa.ColumnElement[int] = table.c.id
    if follows:
        may = sa.and_(table.c.extras.is_not(None), table.c.finished_at.is_not(None))
        told = sa.case(
            (may, schema_function("follow_up", table.schema, table.c.id, of=sa.BigInteger())), else_=table.c.id
        )
    awaited = sa.select(
        schema_function("any_awaited", table.schema, of=sa.Boolean())
    ).scalar_subquery()  # read once, too
    ids = schema_function("tell_ended", table.schema, pg_array([told]), of=sa.ARRAY(sa.BigInteger))
    condition = awaited if deleted else sa.and_(awaited, table.c.finished_at.is_not(None))
    return sa.case((condition, sa.type_coerce(ids[ONE], sa.BigInteger)), else_=told).label("id")


def is_held(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether a worker holds the job by a claim."""
    return status_in(table.c.status, HELD)


def has_run_out(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether a lease has run out. A row that was set to running by hand may have no lease."""
    lease = table.c.lease_expires_at
    return sa.or_(lease.is_(None), lease <= sa.func.now())


def fence(
    table: sa.FromClause, *, id: sa.ColumnElement[Any], token: sa.ColumnElement[Any], by_hand: bool = False
) -> sa.ColumnElement[bool]:
    """Whether the claim of the job `id` by which `token` was given is still valid: the condition of every write after it.

    `by_hand`: a row that was set to running by hand may have no token, and matches a `token` that is NULL.
    """
    columns = table.c
    same = columns.claim_token.is_not_distinct_from(token) if by_hand else columns.claim_token == token
    return sa.and_(columns.id == id, same, is_held(table))


def answered(
    written: sa.ColumnElement[bool],
    valid: sa.ColumnElement[bool],
    *,
    of: sa.FromClause,
    cancelled: sa.ColumnElement[bool] | None = None,
) -> sa.ColumnElement[str]:
    """What a fenced write answers for each row `of` a batch: "applied", or "cancelled" where it was written as a cancel instead; "lost":
    the claim is no longer `valid`; or "locked": another transaction has locked the row, try again.
    """
    # Not EXISTS, which may be planned as a hash over all that runs.
    still_valid = sa.select(sa.literal_column("true", sa.Boolean)).where(valid).correlate(of).scalar_subquery()
    return sa.case(
        *(() if cancelled is None else ((cancelled, sa.literal_column("'cancelled'")),)),
        (written, sa.literal_column("'applied'")),
        (still_valid, sa.literal_column("'locked'")),
        else_=sa.literal_column("'lost'"),
    ).label("answer")
