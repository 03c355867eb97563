"""What a member of a workflow takes: the results of its parents, read once, in pages where there are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Executable,
    Integer,
    Text,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    not_,
    select,
)
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
) -> Executable:
    """What the parents of these jobs have returned: child_id, position, policy, parent_id, status, result, error as JSON text, and total.

    A job with more than `most` parents, or more than `size` bytes, has one row, without a position.
    """
    child = func.unnest(array("child_ids", list(ids), BigInteger())).table_valued("id", name="child").render_derived()
    of_child = (
        _inputs(table_of(job), table_of(dependency), child.c.id)
        .limit(bindparam("most", most + 1, Integer))
        .lateral("input")
    )
    per_child = func.count().over(partition_by=child.c.id)
    bytes_of_child = func.sum(func.octet_length(of_child.c.result)).over(partition_by=child.c.id)
    too_much = (per_child > literal_column(str(most))) | (func.coalesce(bytes_of_child, 0) > literal_column(str(size)))
    found = select(
        child.c.id.label("child_id"), of_child, too_much.label("too_much"),
        func.row_number().over(partition_by=child.c.id, order_by=of_child.c.position).label("number"),
    ).select_from(child.join(of_child, literal_column("true"))).subquery("found")  # fmt: skip
    columns = found.c
    return (
        select(
            columns.child_id,
            case((not_(columns.too_much), columns.position)).label("position"),
            columns.policy, columns.parent_id, columns.status,
            case((not_(columns.too_much), columns.result)).label("result"),
            case((not_(columns.too_much), columns.error)).label("error"),
        )
        .where(not_(columns.too_much) | (columns.number == 1))
        .order_by(columns.child_id, columns.position)
    )  # fmt: skip


def page_of_inputs(
    id: int,
    *,
    after: int = -1,
    limit: int,
    job: type[JobMixin] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
) -> Executable:
    """A page of what the parents of one job have returned, from the position `after` (exclusive) on: the columns of `inputs_of`."""
    edge = table_of(dependency).c
    child = bindparam("child_id", id, BigInteger)
    # The page is cut first, and only its parents are read.
    page = (
        select(edge.child_id, edge.parent_id, edge.policy, edge.position)
        .where(edge.child_id == child, edge.position > bindparam("after", after, Integer))
        .order_by(edge.position)
        .limit(bindparam("page", limit, Integer))
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    found: Executable = _inputs(table_of(job), page, child)
    return found


def _inputs(parent: Any, edge: Any, child: Any) -> Any:
    last = parent.c.errors.op("->", return_type=JSONB())(literal_column("-1"))
    found: Any = (
        select(
            edge.c.position,
            edge.c.policy,
            edge.c.parent_id,
            parent.c.status,
            cast(parent.c.result, Text).label("result"),
            case((parent.c.status != status_literal(JobStatus.COMPLETED), cast(last, Text))).label("error"),
        )
        .select_from(edge.outerjoin(parent, parent.c.id == edge.c.parent_id))
        .where(edge.c.child_id == child, edge.c.position.is_not(None))
        .order_by(edge.c.position)
    )
    return found
