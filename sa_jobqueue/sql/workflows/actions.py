"""Workflows: moving them on, and what an operator does to them. Each is a statement, so it joins the caller's transaction:

>>> statement = cancel_workflows(7, reason="the customer left")

The work is done by functions of the schema, under a lock of the workflow's row and without waiting for any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from ...models import GATE, Job, JobMixin, companions_of, schema_function, status_literal
from ...rules.lifecycle import JobStatus
from ...util.schema import SCHEMA
from ..parts import ONE, ZERO, array, packed, table_of

_OUT: Mapping[str, Any] = {
    "again_ids": sa.ARRAY(sa.BigInteger), "busy_ids": sa.ARRAY(sa.BigInteger), "read_ids": sa.ARRAY(sa.BigInteger), "last_ids": sa.ARRAY(sa.BigInteger),
    "queues": sa.ARRAY(sa.Text), "eaten": sa.Integer,
}  # fmt: skip


def advance_parameters(after: Mapping[int, int], *, most: int) -> dict[str, Any]:
    """The parameters of `advance_workflows`, by name. `after`: by workflow, the id behind which to read events."""
    return {"advance_ids": packed(after), "advance_after": packed(after.values()), "most": most}


def advance_workflows(after: Mapping[int, int], *, most: int, schema: str = SCHEMA) -> sa.Executable:
    """Read at most `most` events of these workflows, and release or cancel the members that waited for them.

    Returns one row: `again_ids`, the workflows with more events to read; `busy_ids`, the workflows that another transaction has locked,
    or whose members it has; for each workflow in `read_ids` the last event that was read, in `last_ids`; the `queues` in which jobs were
    released; and `eaten`, how many events were read.
    """
    given = advance_parameters(after, most=most)
    call: Any = schema_function(
        "advance",
        schema,
        array("advance_ids", given["advance_ids"], sa.BigInteger()),
        array("advance_after", given["advance_after"], sa.BigInteger()),
        sa.bindparam("most", most, sa.Integer),
        of=sa.Text(),
    )
    row = call.table_valued(*(sa.column(name, of) for name, of in _OUT.items()), name="moved").render_derived(
        name="moved"
    )
    return sa.select(*row.c)


def stray_workflows(*, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Two arrays: workflows with events that perhaps no worker knows, and workflows whose deadline is over.

    A paused workflow is left out: its events are read when it goes on. Workflows that were deleted by hand are among them.
    """
    tables = companions_of(job)
    event, workflow = tables.event, tables.workflow
    happened = table_of(event).c.workflow_id
    page = sa.bindparam("page", limit, sa.Integer)

    def first(*after: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
        return sa.select(happened).where(*after).order_by(happened).limit(ONE).scalar_subquery()

    # By workflow, not by event: many events of a workflow must not hide another workflow.
    start = sa.select(first().label("id")).cte("flow", recursive=True)
    flow = start.union_all(sa.select(first(happened > start.c.id)).where(start.c.id.is_not(None)))
    # OFFSET 0 is a fence: each is looked up by its id.
    is_paused = (
        sa.select(workflow.id)
        .where(workflow.id == flow.c.id, workflow.paused_at.is_not(None), workflow.cancelled_at.is_(None))
        .offset(ZERO)
        .correlate(flow)
    )
    found = (
        sa.select(flow.c.id).where(flow.c.id.is_not(None), sa.not_(is_paused.exists())).limit(page).subquery("found")
    )
    overdue = (
        sa.select(workflow.id)
        .where(workflow.deadline_at <= sa.func.now(), workflow.finished_at.is_(None), workflow.cancelled_at.is_(None))
        .order_by(workflow.deadline_at)
        .limit(page)
        .subquery("overdue")
    )
    return sa.select(
        sa.select(sa.func.array_agg(found.c.id)).scalar_subquery().label("workflows"),
        sa.select(sa.func.array_agg(overdue.c.id)).scalar_subquery().label("overdue"),
    )


def _acted(name: str, ids: Any, *more: Any, schema: str) -> sa.Executable:
    acted: Any = schema_function(name, schema, ids, *more, of=sa.BigInteger())
    row = acted.table_valued(sa.column("id", sa.BigInteger), name="acted").render_derived(name="acted")
    return sa.select(row.c.id)


def cancel_workflows(
    *ids: int, reason: str = "the workflow was cancelled by an operator", schema: str = SCHEMA
) -> sa.Executable:
    """Cancel workflows: members that wait are cancelled with this reason, those that run are asked to stop.

    Members that are added meanwhile are cancelled, too. Returns the ids of those that had not ended.
    """
    _check(ids)
    return _acted(
        "cancel_workflows",
        array("workflow_ids", list(ids), sa.BigInteger()),
        sa.bindparam("reason", reason, sa.Text),
        schema=schema,
    )


def retry_workflow(id: int, *, from_node: int | None = None, schema: str = SCHEMA) -> sa.Executable:
    """Retry the jobs of a workflow that failed or were cancelled. Each of them waits for its parents again, and has all its attempts. A job that
    was cancelled because another job failed keeps its due time.

    `from_node`: the id of a job; then only this job, and those below it that were cancelled because of others. Returns the ids of the jobs
    that come back. A unique job does not come back while another job has its key. A job that another transaction has locked is waited for.
    """
    _check([id])
    if from_node is not None and type(from_node) is not int:
        raise TypeError(f"from_node is the id of a job, not {from_node!r}; a node has it as job_id")
    return _acted(
        "retry_workflow",
        sa.bindparam("workflow", id, sa.BigInteger),
        sa.bindparam("from_node", from_node, sa.BigInteger),
        schema=schema,
    )


def reopen_below(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Retry the jobs among these that caused the cancellation of members of their workflows, as by `retry_workflow(..., from_node=id)`.

    A workflow that was cancelled because it is to fail fast is retried as a whole. A job that was itself cancelled because of another job
    is left out: it would be cancelled again. Returns the ids of the jobs that come back.
    """
    tables = companions_of(job)
    table, edge, flow = table_of(job), table_of(tables.dependency), table_of(tables.workflow)
    child = table.alias("child")
    failed_id = sa.literal_column("'failed_id'", sa.Text)

    def last(member: Any) -> sa.ColumnElement[Any]:
        found: sa.ColumnElement[Any] = member.c.errors[sa.literal_column("-1", sa.Integer)].op("->>")(failed_id)
        return found

    below = (
        sa.select(edge.c.child_id)
        .join(child, child.c.id == edge.c.child_id)
        .where(
            edge.c.parent_id == table.c.id,
            child.c.status == status_literal(JobStatus.CANCELLED),
            last(child).is_not(None),
        )
        .correlate(table)
    )
    failed_fast = sa.and_(flow.c.cancelled_at.is_not(None), flow.c.reason.like(sa.literal_column("'%to fail fast'")))
    # OFFSET 0 is a fence: the workflows are locked in the order of their ids.
    nodes = (
        sa.select(flow.c.id.label("workflow_id"), sa.case((sa.not_(failed_fast), table.c.id)).label("from_node"))
        .join_from(table, flow, flow.c.id == table.c.workflow_id)
        .where(
            table.c.id == sa.func.any(array("job_ids", list(ids), sa.BigInteger())),
            last(table).is_(None),
            below.exists() | failed_fast,
        )
        .order_by(flow.c.id, table.c.id)
        .offset(ZERO)
        .subquery("node")
    )
    call: Any = schema_function(
        "retry_workflow", flow.schema, nodes.c.workflow_id, nodes.c.from_node, of=sa.BigInteger()
    )
    back = call.table_valued(sa.column("id", sa.BigInteger), name="back").render_derived(name="back")
    return sa.select(back.c.id).select_from(nodes.join(back, sa.true()))


def pause_workflows(*ids: int, schema: str = SCHEMA) -> sa.Executable:
    """Start no more jobs of these workflows; those that run go on. Returns the ids of those that were not paused.

    A job that another transaction has locked is waited for.
    """
    _check(ids)
    return _acted("pause_workflows", array("workflow_ids", list(ids), sa.BigInteger()), schema=schema)


def resume_workflows(*ids: int, schema: str = SCHEMA) -> sa.Executable:
    """Let paused workflows go on. Returns the ids of those that were paused."""
    _check(ids)
    return _acted("resume_workflows", array("workflow_ids", list(ids), sa.BigInteger()), schema=schema)


def _check(ids: Sequence[object]) -> None:
    for workflow_id in ids:
        if type(workflow_id) is not int:
            raise TypeError(f"workflows are given by their ids, not by {workflow_id!r}")


# ---- A member of a workflow in words: its name, and which of its parents it needs. `node`: a row of `workflow_nodes`.

#: Parents that are named; of more parents the number is shown.
_NAMED = 5
#: The name of the join by which a child runs although parents did not complete, by policy.
_JOINS = {"run": "settled", "skip": "those that complete"}


def name_of(task: str) -> str:
    """The name of its task, or "gate"."""
    return "gate" if task == GATE else task


def joins_of(node: Any) -> str:
    """As in "any of 3", "at least 2 of 3", "settled", or "settled: 11, 12" where that holds for some; empty: it needs all."""
    policies = dict(zip(node.parents or (), node.policies or (), strict=True))
    counted = sum(policy == "count" for policy in policies.values())
    joins = []
    if counted:
        joins.append(f"{'any' if node.needed == 1 else f'at least {node.needed}'} of {counted:,}")
    for policy, name in _JOINS.items():
        its = [parent for parent, other in policies.items() if other == policy]
        if its and len(its) == len(policies):
            joins.append(name)
        elif its:
            joins.append(f"{name}: {', '.join(map(str, its))}" if len(its) <= _NAMED else f"{name}: {len(its):,}")
    return "; ".join(joins)


# ---- Events of workflows: appended by each statement that ends jobs, for the members of workflows.

COMPLETED: sa.ColumnElement[Any] = sa.literal_column("true", sa.Boolean)
NOT_COMPLETED: sa.ColumnElement[Any] = sa.literal_column("false", sa.Boolean)
#: The event that lets a worker read the state of a member.
LOOK: sa.ColumnElement[Any] = sa.cast(sa.null(), sa.Boolean)


def members_ended(
    jobs: Sequence[sa.FromClause], completed: sa.ColumnElement[Any] = COMPLETED, *, job: type[JobMixin] = Job
) -> sa.Insert:
    """Append an event for each of these jobs that is a member of a workflow.

    `jobs` have the columns `id` and `workflow_id`, which is NULL for jobs that get no event. `completed`: whether the member completed;
    NULL: a worker must read its state.
    """
    ends = [
        sa.select(
            ending.c.workflow_id, ending.c.id, completed if "completed" not in ending.c else ending.c.completed
        ).where(ending.c.workflow_id.is_not(None))
        for ending in jobs
    ]
    source: Any = ends[0] if len(ends) == 1 else ends[0].union_all(*ends[1:])
    return sa.insert(table_of(companions_of(job).event)).from_select(
        ["workflow_id", "job_id", "completed"], source, include_defaults=False
    )


def member_events(
    jobs: Sequence[sa.FromClause],
    completed: sa.ColumnElement[Any] = COMPLETED,
    *,
    notify: bool = False,
    job: type[JobMixin] = Job,
) -> sa.CTE:
    """Like `members_ended`, as a part of the statement that ends the jobs. `notify`: workers that listen are notified at the commit."""
    appended = members_ended(jobs, completed, job=job)
    if notify:
        telling = schema_function("tell_workflows", table_of(companions_of(job).event).schema, of=sa.Text())
        return appended.returning(telling.label("told")).cte("events")
    return appended.cte("events")
