"""Looking at a workflow: its members, how many have which status, and its callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    Select,
    Text,
    bindparam,
    case,
    func,
    literal_column,
    select,
    true,
)
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
) -> Select[Any]:
    """The members of a workflow, by id, from `after` (exclusive) on: id, task, queue, status, attempt, blocked_by, created_at, claimed_at,
    finished_at, the last error; parents, an array of ids, and policies, what becomes of it where each of them does not complete; and needed,
    how many have to complete of those whose policy is "count".
    """
    columns = table_of(job).c
    before = _before(job, dependency)
    needed = select(join.needed).where(join.job_id == columns.id).correlate(table_of(job)).scalar_subquery()
    counts = literal_column("'count'", Text) == func.any(before.c.policies)
    last = columns.errors.op("->", return_type=JSONB())(literal_column("-1"))
    shown: list[Any] = [
        columns.id, columns.task, columns.queue, columns.status, columns.attempt, columns.blocked_by, columns.created_at,
        columns.claimed_at, columns.finished_at, last.label("error"), before.c.parents, before.c.policies,
        case((counts, needed)).label("needed"),
    ]  # fmt: skip
    query: Any = select(*shown)
    found: Select[Any] = (
        query.select_from(table_of(job).join(before, true()))
        .where(
            columns.workflow_id == bindparam("of_workflow", id, BigInteger),
            columns.id > bindparam("after_id", after, BigInteger),
        )
        .order_by(columns.id)
        .limit(bindparam("page", limit, Integer))
    )
    return found


@with_companions
def workflow_graph(
    id: int,
    *,
    limit: int,
    job: type[JobMixin] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
) -> Select[Any]:
    """What a picture of a workflow needs of its first `limit` members, by id: id, task, status, created_at, claimed_at, finished_at,
    parents and policies, as in `workflow_nodes`.
    """
    columns = table_of(job).c
    before = _before(job, dependency)
    shown: list[Any] = [
        columns.id, columns.task, columns.status, columns.created_at, columns.claimed_at, columns.finished_at, before.c.parents,
        before.c.policies,
    ]  # fmt: skip
    query: Any = select(*shown)
    found: Select[Any] = (
        query.select_from(table_of(job).join(before, true()))
        .where(columns.workflow_id == bindparam("of_workflow", id, BigInteger))
        .order_by(columns.id)
        .limit(bindparam("page", limit, Integer))
    )
    return found


def _before(job: type[JobMixin], dependency: type[WorkflowDependency]) -> FromClause:
    """The parents of each member, and what becomes of it where each of them does not complete."""
    edge = table_of(dependency)
    return (
        select(
            func.array_agg(aggregate_order_by(edge.c.parent_id, edge.c.parent_id), type_=ARRAY(BigInteger)).label("parents"),
            func.array_agg(aggregate_order_by(edge.c.policy, edge.c.parent_id), type_=ARRAY(Text)).label("policies"),
        )
        .where(edge.c.child_id == table_of(job).c.id)
        .correlate(table_of(job))
        .lateral("before")
    )  # fmt: skip


def workflow_counts(ids: Sequence[int], *, job: type[JobMixin] = Job) -> Executable:
    """How many jobs of these workflows have which status: workflow_id, status, number. A status that no job has, has no row."""
    columns = table_of(job).c
    flow = rows("flow", id=array("workflow_ids", list(ids), BigInteger()))
    return (
        select(columns.workflow_id, columns.status, func.count().label("number"))
        .where(columns.workflow_id == flow.c.id)
        .group_by(columns.workflow_id, columns.status)
    )


def count_some_members(
    ids: Sequence[int], *, cap: int, where: Sequence[ColumnElement[bool]] = (), job: type[JobMixin] = Job
) -> Executable:
    """The same of the first `cap` members of each workflow: so it takes milliseconds, however many they have. `where`: of these alone."""
    columns = table_of(job).c
    flow = rows("flow", id=array("workflow_ids", list(ids), BigInteger()))
    some = (
        select(columns.status)
        .where(columns.workflow_id == flow.c.id, *where)
        .order_by(columns.id)
        .limit(bindparam("cap", cap, Integer))
        .correlate(flow)
        .lateral("some")
    )
    return (
        select(flow.c.id.label("workflow_id"), some.c.status, func.count().label("number"))
        .select_from(flow.join(some, true()))
        .group_by(flow.c.id, some.c.status)
    )


def workflow_callbacks(id: int, *, callback: type[WorkflowCallback] = WorkflowCallback) -> Executable:
    """What is to be enqueued when something happens to a workflow: event, task, queue, fired_at."""
    return (
        select(callback.event, callback.task, callback.queue, callback.fired_at)
        .where(callback.workflow_id == bindparam("of_workflow", id, BigInteger))
        .order_by(callback.number)
    )
