"""Plain completions, which nearly all outcomes are, have statements of their own.

`apply_changes` can write any outcome, and costs three times as much per job, because it takes eleven arrays apart four
times. The statements here take only what a completion needs. What they cannot write is left to `apply_changes`. They may
contain a claim: then the most frequent work of a busy worker is one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ..arguments.context import ClaimedJob
from ..models import Job, JobMixin, status_literal
from ..rules.lifecycle import TRANSITIONS, Change, Event, JobStatus
from .ends import ended, ended_id, fence, is_held, notify_waiters
from .parts import array, lock_in_order, members, packed, packed_alike, packed_texts, rows, table_of
from .workflows.actions import member_events


def completion_parameters(changes: Sequence[Change], *, kept: bool = True) -> dict[str, Any]:
    """The parameters of `complete_jobs` or, if not `kept`, `delete_completed`, by name."""
    parameters = {
        "done_ids": packed([change.id for change in changes]),
        "done_tokens": packed_alike([change.claim_token for change in changes]),
    }
    if kept:
        parameters["done_retain"] = packed_alike([change.retain for change in changes])
        results = [change.result for change in changes]
        if results.count(None) < len(results):
            parameters[_RESULTS] = packed_texts(results)
    return parameters


#: The parameter that only batches with a result have.
_RESULTS = "done_results"


def has_results(parameters: Mapping[str, Any]) -> bool:
    """Whether these `completion_parameters` are for a `complete_jobs` that records results."""
    return _RESULTS in parameters


def complete_jobs(
    *,
    ids: Sequence[int],
    tokens: Sequence[int],
    retain: Sequence[float | None],
    results: Sequence[str | None] | None = None,
    claim: sa.Update | sa.CompoundSelect[Any] | None = None,
    in_workflows: bool = False,
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Mark jobs as `completed`, each only if its claim is still valid.

    `retain`: seconds, by the database's clock, until the row may be deleted, None: never. `results`: of each job its result as
    JSON text, None if it has none; or None for a statement that records none. One row comes back: the ids that were written,
    as an array, or NULL. A row that another transaction has locked is left out.

    `in_workflows`: whether some of the jobs are members of workflows: then events are appended.

    `claim`: a `claim_jobs`, or a `claim_limited`, to be executed with it. Then the ids come back as text in a first row that has nothing else (see
    `written_ids`), and behind it the rows of the claim.
    """
    table = table_of(job)
    more = {} if results is None else {"result": array(_RESULTS, results, sa.Text())}
    done, locked, valid = _batch(
        table, ids, tokens, more={"retain": array("done_retain", retain, sa.Float(53)), **more}
    )
    result = None if results is None else sa.cast(done.c.result, JSONB)
    completed = sa.update(table).where(valid).values(_completed(done.c.retain, result))
    if not in_workflows:
        return _answered(table, locked, completed.returning(table.c.id).cte("written"), claim)
    written = completed.returning(table.c.id, table.c.workflow_id).cte("written")
    return _answered(table, locked, written, claim, member_events([written], job=job))


def own_parameters(change: Change) -> dict[str, Any]:
    """The parameters of `complete_job`, by name."""
    parameters = {"done_id": change.id, "done_token": change.claim_token, "done_retain": change.retain}
    return parameters if change.result is None else {**parameters, "done_result": change.result}


def complete_job(
    *,
    id: int,
    token: int,
    retain: float | None,
    result: str | None = None,
    in_workflow: bool = False,
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Mark a single job as `completed`; waits for its row if another transaction has locked it. Returns its id, or no row.

    For the transactions of handlers. It finds the row by its key, with any planner settings of their connections.
    `result`: as JSON text; None: the statement records none. `in_workflow`: whether it is a member of a workflow.
    """
    table = table_of(job)
    recorded = None if result is None else sa.cast(sa.bindparam("done_result", result, sa.Text), JSONB)
    completed = (
        sa.update(table)
        .where(
            fence(
                table,
                id=sa.bindparam("done_id", id, sa.BigInteger),
                token=sa.bindparam("done_token", token, sa.BigInteger),
            )
        )
        .values(_completed(sa.bindparam("done_retain", retain, sa.Float), recorded))
    )
    if not in_workflow:
        return completed.returning(ended_id(table))
    written = completed.returning(ended_id(table), table.c.workflow_id).cte("written")
    return sa.select(written.c.id).add_cte(member_events([written], job=job))


def _completed(retain: sa.ColumnElement[Any], result: sa.ColumnElement[Any] | None) -> dict[str, sa.ColumnElement[Any]]:
    return ended(status_literal(TRANSITIONS[JobStatus.RUNNING, Event.COMPLETE]), retain=retain, result=result)


def _batch(
    table: sa.Table,
    ids: Sequence[int],
    tokens: Sequence[int],
    *,
    more: Mapping[str, sa.ColumnElement[Any]] | None = None,
    to_delete: bool = False,
) -> tuple[sa.TableValuedAlias, sa.CTE, sa.ColumnElement[bool]]:
    """The completions as rows, their jobs locked, and the condition of a write: locked, and the claim is still valid."""
    of_jobs = array("done_ids", ids, sa.BigInteger())
    done = rows("done", id=of_jobs, token=array("done_tokens", tokens, sa.BigInteger()), **(more or {}))
    locked = lock_in_order(table, table.c.id == sa.func.any(of_jobs), is_held(table), to_delete=to_delete)
    is_locked = members(table.c.id, sa.select(locked.c.id))
    return done, locked, sa.and_(is_locked, fence(table, id=done.c.id, token=done.c.token))


def delete_completed(
    *,
    ids: Sequence[int],
    tokens: Sequence[int],
    claim: sa.Update | sa.CompoundSelect[Any] | None = None,
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """As `complete_jobs`, but the jobs are not kept: their rows are deleted."""
    table = table_of(job)
    _, locked, valid = _batch(table, ids, tokens, to_delete=True)
    written = sa.delete(table).where(valid).returning(table.c.id).cte("written")
    return _answered(table, locked, written, claim)


#: The column in which the ids come that were written, where a claim comes with them.
_IDS = "args"
_IDS_AT = ClaimedJob._fields.index(_IDS)


def written_ids(row: Sequence[Any]) -> list[int]:
    """The ids in the first row that a completion with a claim returns."""
    written: str | None = row[_IDS_AT]
    return [int(number) for number in written[1:-1].split(",")] if written else []


def _answered(
    table: sa.Table, locked: sa.CTE, written: sa.CTE, claim: sa.Update | sa.CompoundSelect[Any] | None, *also: sa.CTE
) -> sa.Executable:
    ids = notify_waiters(sa.func.array_agg(written.c.id, type_=sa.ARRAY(sa.BigInteger)), of=table)
    if claim is None:
        return sa.select(ids).select_from(written).add_cte(locked, *also)
    claimed = claim.cte("claimed")
    answer = [sa.cast(ids, sa.Text) if column.key == _IDS else sa.null() for column in claimed.c]
    # The parts are executed in this order, which matters: a unique index of the application may allow a single running job of a kind.
    return sa.union_all(sa.select(*answer).select_from(written), sa.select(*claimed.c)).add_cte(locked, *also)
