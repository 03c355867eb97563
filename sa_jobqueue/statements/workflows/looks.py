"""Looking at a workflow: its members, how many have which status, and its callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by

from ...models import (
    Job,
    JobMixin,
    WorkflowCallback,
    WorkflowDependency,
    WorkflowJoin,
)
from ..beside import with_companions
from ..parts import FIRST_ID, array, rows, table_of

__all__ = [
    "count_some_members",
    "workflow_callbacks",
    "workflow_counts",
    "workflow_graph",
    "workflow_nodes",
]


@with_companions
def workflow_nodes(
    id: int,
    *,
    after: int = FIRST_ID,
    limit: int = 1_000,
    job: type[JobMixin] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
    join: type[WorkflowJoin] = WorkflowJoin,
) -> sa.Select[Any]:
    """The members of a workflow, by id, from `after` (exclusive) on: id, task, queue, status, attempt, blocked_by, created_at, claimed_at,
    finished_at, the last error; parents, an array of ids, and policies, what becomes of it where each of them does not complete; and needed,
    how many have to complete of those whose policy is "count".
    """
    columns = table_of(job).c
    before = _before(job, dependency)
    needed = sa.select(join.needed).where(join.job_id == columns.id).correlate(table_of(job)).scalar_subquery()
    counts = sa.literal_column("'count'", sa.Text) == sa.func.any(before.c.policies)
    last = columns.errors.op("->", return_type=JSONB())(sa.literal_column("-1"))
    shown: list[Any] = [
        columns.id, columns.task, columns.queue, columns.status, columns.attempt, columns.blocked_by, columns.created_at,
        columns.claimed_at, columns.finished_at, last.label("error"), before.c.parents, before.c.policies,
        sa.case((counts, needed)).label("needed"),
    ]  # fmt: skip
    query: Any = sa.select(*shown)
    found: sa.Select[Any] = (
        query.select_from(table_of(job).join(before, sa.true()))
        .where(
            columns.workflow_id == sa.bindparam("of_workflow", id, sa.BigInteger),
            columns.id > sa.bindparam("after_id", after, sa.BigInteger),
        )
        .order_by(columns.id)
        .limit(sa.bindparam("page", limit, sa.Integer))
    )
    return found


@with_companions
def workflow_graph(
    id: int,
    *,
    limit: int,
    job: type[JobMixin] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
) -> sa.Select[Any]:
    """What a picture of a workflow needs of its first `limit` members, by id: id, task, status, created_at, claimed_at, finished_at,
    parents and policies, as in `workflow_nodes`.
    """
    columns = table_of(job).c
    before = _before(job, dependency)
    shown: list[Any] = [
        columns.id, columns.task, columns.status, columns.created_at, columns.claimed_at, columns.finished_at, before.c.parents,
        before.c.policies,
    ]  # fmt: skip
    query: Any = sa.select(*shown)
    found: sa.Select[Any] = (
        query.select_from(table_of(job).join(before, sa.true()))
        .where(columns.workflow_id == sa.bindparam("of_workflow", id, sa.BigInteger))
        .order_by(columns.id)
        .limit(sa.bindparam("page", limit, sa.Integer))
    )
    return found


def _before(job: type[JobMixin], dependency: type[WorkflowDependency]) -> sa.FromClause:
    """The parents of each member, and what becomes of it where each of them does not complete."""
    edge = table_of(dependency)
    return (
        sa.select(
            sa.func.array_agg(aggregate_order_by(edge.c.parent_id, edge.c.parent_id), type_=sa.ARRAY(sa.BigInteger)).label("parents"),
            sa.func.array_agg(aggregate_order_by(edge.c.policy, edge.c.parent_id), type_=sa.ARRAY(sa.Text)).label("policies"),
        )
        .where(edge.c.child_id == table_of(job).c.id)
        .correlate(table_of(job))
        .lateral("before")
    )  # fmt: skip


def workflow_counts(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """How many jobs of these workflows have which status: workflow_id, status, number. A status that no job has, has no row."""
    columns = table_of(job).c
    flow = rows("flow", id=array("workflow_ids", list(ids), sa.BigInteger()))
    return (
        sa.select(columns.workflow_id, columns.status, sa.func.count().label("number"))
        .where(columns.workflow_id == flow.c.id)
        .group_by(columns.workflow_id, columns.status)
    )


def count_some_members(
    ids: Sequence[int], *, cap: int, where: Sequence[sa.ColumnElement[bool]] = (), job: type[JobMixin] = Job
) -> sa.Executable:
    """The same of the first `cap` members of each workflow: so it takes milliseconds, however many they have. `where`: of these alone."""
    columns = table_of(job).c
    flow = rows("flow", id=array("workflow_ids", list(ids), sa.BigInteger()))
    some = (
        sa.select(columns.status)
        .where(columns.workflow_id == flow.c.id, *where)
        .order_by(columns.id)
        .limit(sa.bindparam("cap", cap, sa.Integer))
        .correlate(flow)
        .lateral("some")
    )
    return (
        sa.select(flow.c.id.label("workflow_id"), some.c.status, sa.func.count().label("number"))
        .select_from(flow.join(some, sa.true()))
        .group_by(flow.c.id, some.c.status)
    )


def workflow_callbacks(id: int, *, callback: type[WorkflowCallback] = WorkflowCallback) -> sa.Executable:
    """What is to be enqueued when something happens to a workflow: event, task, queue, fired_at."""
    return (
        sa.select(callback.event, callback.task, callback.queue, callback.fired_at)
        .where(callback.workflow_id == sa.bindparam("of_workflow", id, sa.BigInteger))
        .order_by(callback.number)
    )
