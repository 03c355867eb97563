"""What a member of a workflow takes: the results of its parents, read once, in pages where there are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ...lifecycle import JobStatus
from ...models import (
    Job,
    JobMixin,
    WorkflowDependency,
    status_literal,
)
from ..parts import array, table_of

__all__ = [
    "inputs_of",
    "page_of_inputs",
]


def inputs_of(
    ids: Sequence[int],
    *,
    most: int,
    size: int,
    job: type[JobMixin] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
) -> sa.Executable:
    """What the parents of these jobs have returned: child_id, position, policy, parent_id, status, result, error as JSON text, and total.

    A job with more than `most` parents, or more than `size` bytes, has one row, without a position.
    """
    child = (
        sa.func.unnest(array("child_ids", list(ids), sa.BigInteger())).table_valued("id", name="child").render_derived()
    )
    of_child = (
        _inputs(table_of(job), table_of(dependency), child.c.id)
        .limit(sa.bindparam("most", most + 1, sa.Integer))
        .lateral("input")
    )
    per_child = sa.func.count().over(partition_by=child.c.id)
    bytes_of_child = sa.func.sum(sa.func.octet_length(of_child.c.result)).over(partition_by=child.c.id)
    too_much = (per_child > sa.literal_column(str(most))) | (
        sa.func.coalesce(bytes_of_child, 0) > sa.literal_column(str(size))
    )
    found = sa.select(
        child.c.id.label("child_id"), of_child, too_much.label("too_much"),
        sa.func.row_number().over(partition_by=child.c.id, order_by=of_child.c.position).label("number"),
    ).select_from(child.join(of_child, sa.literal_column("true"))).subquery("found")  # fmt: skip
    columns = found.c
    return (
        sa.select(
            columns.child_id,
            sa.case((sa.not_(columns.too_much), columns.position)).label("position"),
            columns.policy, columns.parent_id, columns.status,
            sa.case((sa.not_(columns.too_much), columns.result)).label("result"),
            sa.case((sa.not_(columns.too_much), columns.error)).label("error"),
        )
        .where(sa.not_(columns.too_much) | (columns.number == 1))
        .order_by(columns.child_id, columns.position)
    )  # fmt: skip


def page_of_inputs(
    id: int,
    *,
    after: int = -1,
    limit: int,
    job: type[JobMixin] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
) -> sa.Executable:
    """A page of what the parents of one job have returned, from the position `after` (exclusive) on: the columns of `inputs_of`."""
    edge = table_of(dependency).c
    child = sa.bindparam("child_id", id, sa.BigInteger)
    # The page is cut first, and only its parents are read.
    page = (
        sa.select(edge.child_id, edge.parent_id, edge.policy, edge.position)
        .where(edge.child_id == child, edge.position > sa.bindparam("after", after, sa.Integer))
        .order_by(edge.position)
        .limit(sa.bindparam("page", limit, sa.Integer))
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    found: sa.Executable = _inputs(table_of(job), page, child)
    return found


def _inputs(parent: Any, edge: Any, child: Any) -> Any:
    last = parent.c.errors.op("->", return_type=JSONB())(sa.literal_column("-1"))
    found: Any = (
        sa.select(
            edge.c.position,
            edge.c.policy,
            edge.c.parent_id,
            parent.c.status,
            sa.cast(parent.c.result, sa.Text).label("result"),
            sa.case((parent.c.status != status_literal(JobStatus.COMPLETED), sa.cast(last, sa.Text))).label("error"),
        )
        .select_from(edge.outerjoin(parent, parent.c.id == edge.c.parent_id))
        .where(edge.c.child_id == child, edge.c.position.is_not(None))
        .order_by(edge.c.position)
    )
    return found
