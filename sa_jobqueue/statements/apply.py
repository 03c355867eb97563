"""Applying outcomes: a batch of fenced writes in one statement, with an answer for each row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Executable,
    Float,
    Integer,
    SmallInteger,
    Table,
    TableValuedAlias,
    Text,
    and_,
    case,
    cast,
    delete,
    func,
    literal_column,
    not_,
    or_,
    select,
    type_coerce,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB

from ..failures import MAX_ERRORS
from ..lifecycle import FINISHED, Change, JobStatus
from ..models import Job, StatusText, status_in, status_literal
from ._parts import array, in_seconds, lock_in_order, members, rows, table_of
from .ends import at_end, ended, fence, has_run_out, is_held

__all__ = ["append_error", "apply_changes", "apply_parameters"]


def apply_parameters(changes: Sequence[Change]) -> dict[str, Any]:
    """The parameters of `apply_changes`, by name, to execute a statement again that was built once."""
    return {
        "change_ids": [change.id for change in changes],
        "change_tokens": [change.claim_token for change in changes],
        "change_status": [change.status.value for change in changes],
        "change_if_cancelled": [change.if_cancelled.value for change in changes],
        "change_delay": [change.delay for change in changes],
        "change_attempt": [change.attempt for change in changes],
        "change_rescues": [change.rescues for change in changes],
        "change_error": [_error_json(change) for change in changes],
        "change_result": [change.result for change in changes],
        "change_retain": [change.retain for change in changes],
        "change_expired": [change.expired for change in changes],
    }


def _error_json(change: Change) -> str | None:
    if change.error is None:
        return None
    error = change.error
    return json.dumps({"type": error.type, "message": error.message, "traceback": error.traceback})


def apply_changes(changes: Sequence[Change], *, skip_locked: bool = True, job: type[Job] = Job) -> Executable:
    """Write what claimed jobs became, each only if its claim is still valid.

    `skip_locked`: do not wait for a row that another transaction has locked. Durations count from the beginning of the
    statement, by the database's clock.

    Returns a row per change: id, claim_token, answer. The answer is "applied"; "lost": the claim is no longer valid, or,
    for a rescue, the lease was renewed; or "locked": try again.
    """
    table = table_of(job)
    change = _rows_of(apply_parameters(changes))
    ids = array("change_ids", [one.id for one in changes], BigInteger())
    locked = lock_in_order(table, table.c.id == func.any(ids), is_held(table), skip_locked=skip_locked)
    valid = _is_valid(table, change)
    mine = and_(members(table.c.id, select(locked.c.id)), valid)
    deleted = _deleted(table, change, mine, skip_locked=skip_locked)
    updated = _updated(table, change, mine)
    done = union_all(select(deleted), select(updated)).subquery("done")
    # Not EXISTS, which may be planned as a hash over all that runs.
    still_ours = select(literal_column("true", Boolean)).where(valid).correlate(change).scalar_subquery()
    return (
        select(
            change.c.id,
            change.c.claim_token,
            case(
                (done.c.id.is_not(None), literal_column("'applied'")),
                (still_ours, literal_column("'locked'")),
                else_=literal_column("'lost'"),
            ).label("answer"),
        )
        .select_from(
            change.outerjoin(
                done, and_(done.c.id == change.c.id, done.c.claim_token.is_not_distinct_from(change.c.claim_token))
            )
        )
        .add_cte(locked)
    )


def _rows_of(given: Mapping[str, Any]) -> TableValuedAlias:
    """The changes as rows."""
    return rows(
        "change",
        id=array("change_ids", given["change_ids"], BigInteger()),
        claim_token=array("change_tokens", given["change_tokens"], BigInteger()),
        status=array("change_status", given["change_status"], Text()),
        if_cancelled=array("change_if_cancelled", given["change_if_cancelled"], Text()),
        delay=array("change_delay", given["change_delay"], Float(53)),
        attempt=array("change_attempt", given["change_attempt"], SmallInteger()),
        rescues=array("change_rescues", given["change_rescues"], SmallInteger()),
        error=array("change_error", given["change_error"], Text()),
        result=array("change_result", given["change_result"], Text()),
        retain=array("change_retain", given["change_retain"], Float(53)),
        expired=array("change_expired", given["change_expired"], Boolean()),
    )


def _is_valid(table: Table, change: TableValuedAlias) -> ColumnElement[bool]:
    """Whether the change may be written: the claim holds and, for a rescue, the lease has still run out.

    A renewal does not change the token, so the write of a rescue looks at the lease once more.
    """
    return and_(
        fence(table, id=change.c.id, token=change.c.claim_token, by_hand=True),
        or_(not_(change.c.expired), has_run_out(table)),
    )


def _deletes(change: TableValuedAlias) -> ColumnElement[bool]:
    """`Change.deletes`, in SQL."""
    return and_(change.c.status == status_literal(JobStatus.COMPLETED), change.c.retain == literal_column("0"))


def _deleted(table: Table, change: TableValuedAlias, mine: ColumnElement[bool], *, skip_locked: bool) -> CTE:
    """Delete the rows of jobs that are not kept.

    A DELETE needs a stronger lock than the one of all changes: it would wait for a row of the application's that references
    the job in a transaction that is still open. So the rows to be deleted are locked once more.
    """
    columns = table.c
    leaving = (
        select(columns.id)
        .where(members(columns.id, select(change.c.id).where(_deletes(change))), is_held(table))
        .order_by(columns.id)
        .with_for_update(skip_locked=skip_locked)
        .cte("leaving")
        .prefix_with("MATERIALIZED")
    )
    return (
        delete(table)
        .where(members(columns.id, select(leaving.c.id)), mine, _deletes(change))
        .returning(columns.id, columns.claim_token)
        .cte("deleted")
    )


def _updated(table: Table, change: TableValuedAlias, mine: ColumnElement[bool]) -> CTE:
    """Write all others: the jobs that end, and those that go back to the queue."""
    columns = table.c
    status = case((columns.cancel_requested_at.is_(None), change.c.status), else_=change.c.if_cancelled)
    finished = status_in(status, FINISHED)
    return (
        update(table)
        .where(mine, not_(func.coalesce(_deletes(change), literal_column("false"))))
        .values(
            **ended(
                type_coerce(status, StatusText()),
                retain=change.c.retain,
                result=cast(change.c.result, JSONB),
                only=finished,
            ),
            run_at=case(
                (finished, columns.run_at),
                # At once, and so also for a claim in this same transaction.
                (change.c.delay == literal_column("0"), func.now()),
                else_=in_seconds(change.c.delay, after=at_end()),
            ),
            attempt=func.greatest(cast(columns.attempt, Integer) + change.c.attempt, literal_column("0")),
            rescues=func.least(cast(columns.rescues, Integer) + change.c.rescues, literal_column("32767")),
            errors=case(
                (change.c.error.is_(None), columns.errors),
                else_=append_error(table, cast(change.c.error, JSONB)),
            ),
        )
        .returning(columns.id, columns.claim_token)
        .cte("updated")
    )


def append_error(table: Any, entry: Any) -> Any:
    """The column `errors` with `entry` (jsonb) at its end, stamped with the time and attempt; the oldest entry may go."""
    errors = table.c.errors
    stamp = func.jsonb_build_object(literal_column("'at'"), at_end(), literal_column("'attempt'"), table.c.attempt)
    newest: ColumnElement[Any] = literal_column(f"'$[last - {MAX_ERRORS - 2} to last]'::jsonpath")
    kept = case(
        (func.jsonb_typeof(errors) != literal_column("'array'"), literal_column("'[]'::jsonb")),
        (
            func.jsonb_array_length(errors) >= literal_column(str(MAX_ERRORS)),
            func.jsonb_path_query_array(errors, newest, type_=JSONB),
        ),
        else_=errors,
    )
    return kept.op("||", return_type=JSONB())(func.jsonb_build_array(entry.op("||", return_type=JSONB())(stamp)))
