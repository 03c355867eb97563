"""Reading the results of a member's parents, and inserting members of a workflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.types import TypeEngine

from ...models import Job, JobMixin, WorkflowCallback, companions_of, due_text, schema_function, status_literal
from ...rules.lifecycle import JobStatus
from ...tasks.calls import Call
from ...util.schema import SCHEMA
from ..insert import type_of, values_of
from ..parts import array, columns_of, materialized, packed, packed_alike, packed_texts, rows, table_of


def inputs_of(ids: Sequence[int], *, most: int, size: int, job: type[JobMixin] = Job) -> sa.Executable:
    """The results of the parents of these jobs: child_id, position, policy, parent_id, status, and result and error as JSON text.

    A job with more than `most` parents, or more than `size` bytes, has one row, without a position.
    """
    child = (
        sa.func.unnest(array("child_ids", list(ids), sa.BigInteger())).table_valued("id", name="child").render_derived()
    )
    of_child = (
        _inputs(table_of(job), table_of(companions_of(job).dependency), child.c.id)
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


def page_of_inputs(id: int, *, after: int = -1, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """A page of what the parents of one job have returned, from the position `after` (exclusive) on: the columns of `inputs_of`."""
    edge = table_of(companions_of(job).dependency).c
    child = sa.bindparam("child_id", id, sa.BigInteger)
    # The page is cut first, and only its parents are read.
    page = materialized(
        sa.select(edge.child_id, edge.parent_id, edge.policy, edge.position)
        .where(edge.child_id == child, edge.position > sa.bindparam("after", after, sa.Integer))
        .order_by(edge.position)
        .limit(sa.bindparam("page", limit, sa.Integer)),
        "page",
    )
    found: sa.Executable = _inputs(table_of(job), page, child)
    return found


def _inputs(parent: Any, edge: Any, child: Any) -> Any:
    last = parent.c.errors.op("->", return_type=JSONB())(sa.literal_column("-1"))
    found: Any = (
        sa.select(
            *columns_of(edge.c, "position policy parent_id"),
            parent.c.status,
            sa.cast(parent.c.result, sa.Text).label("result"),
            sa.case((parent.c.status != status_literal(JobStatus.COMPLETED), sa.cast(last, sa.Text))).label("error"),
        )
        .select_from(edge.outerjoin(parent, parent.c.id == edge.c.parent_id))
        .where(edge.c.child_id == child, edge.c.position.is_not(None))
        .order_by(edge.c.position)
    )
    return found


# ---- Adding members to a workflow: a call of a function of the schema, which makes a single INSERT for each table.

#: For what a member waits first: for nothing; for what is still to be found; for some of its parents; for the job that adds it.
BEGINS, LATER, COUNTS, BEHIND_ME = 0, -1, -2, -3


@dataclass(slots=True)
class MemberRows:
    """New members, and their edges, as columns. A member is known by its number, from 1 on."""

    calls: list[Call] = field(default_factory=list)
    inputs: list[int | None] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    """The member for which each waits first; or a constant of those above."""
    children: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """A job's id; or minus the number of a member."""
    policies: list[str] = field(default_factory=list)
    positions: list[int | None] = field(default_factory=list)
    needed: dict[int, int] = field(default_factory=dict)
    """By member, how many of its parents it needs, where that is not all."""
    before: list[int] = field(default_factory=list)
    """Members for which the children of an existing job wait, too."""


def add_members(
    workflow: int, added: MemberRows, *, outside: bool | None = None, me: int | None = None, schema: str | None = SCHEMA
) -> sa.Executable:
    """Add these members to an existing workflow. Returns an array: the ids of the jobs, in the order of the members.

    `outside`: whether a caller that is no member of the workflow adds them; None: the workflow is new. `me`: the member that does. Fails with
    SQLSTATE SJQ04 where the workflow has ended.
    """
    arguments: list[Any] = [
        sa.bindparam("workflow", workflow, sa.BigInteger),
        sa.bindparam("outside", outside, sa.Boolean),
    ]
    for job_field, values in values_of(added.calls):
        arguments.append(
            _array(
                job_field.column,
                list(map(due_text, values) if job_field.kind == "time" else values),
                type_of(job_field),
            )
        )
    arguments += [
        _array("inputs", added.inputs, sa.SmallInteger()),
        _array("waits", added.waits, sa.Integer()),
        _array("children", added.children, sa.Integer()),
        _array("parents", added.parents, sa.BigInteger()),
        _array("policies", added.policies, sa.Text()),
        _array("positions", added.positions, sa.Integer()),
        _array("counting", list(added.needed), sa.Integer()),
        _array("needed", list(added.needed.values()), sa.Integer()),
        sa.bindparam("me", me, sa.BigInteger),
        _array("before", added.before, sa.Integer()),
    ]
    ids = schema_function("add_members", schema, *arguments, of=sa.ARRAY(sa.BigInteger))
    return sa.select(ids.label("ids"))


def _array(name: str, values: Sequence[Any], of: TypeEngine[Any]) -> Any:
    """An array parameter, empty where it has no value at all: in the function it is as long as the others. Texts that are equal, as most
    are, are quoted once.
    """
    if values.count(None) == len(values):
        return array(name, (), of)
    if isinstance(of, sa.Text):
        quoted = {fromkey: packed_texts([fromkey])[1:-1] for fromkey in dict.fromkeys(values)}
        return array(name, _joined(quoted[value] for value in values), of)
    numbers = packed(values) if name in {"children", "parents"} else packed_alike(values)
    return array(name, _joined([numbers[1:-1]]), of)


def _joined(parts: Iterable[str]) -> Any:
    """The text of an array."""
    return f"{{{','.join(parts)}}}"


def insert_callbacks(
    workflow: int, callbacks: Sequence[tuple[str, Call]], callback: type[WorkflowCallback] = WorkflowCallback
) -> sa.Executable:
    """Insert the calls to enqueue at "success", "failure" or the "end" of the workflow."""
    target = table_of(callback)
    kept = [pair for pair in values_of([call for _, call in callbacks]) if pair[0].column in target.c]
    columns: Mapping[str, tuple[TypeEngine[Any], Sequence[Any]]] = {
        "event": (sa.Text(), [event for event, _ in callbacks]),
        **{field.column: (type_of(field), values) for field, values in kept if not field.rare},
        "delay": (sa.Text(), [str(call.run_at.total_seconds()) for _, call in callbacks]),  # type: ignore[union-attr]
        **{field.column: (type_of(field), values) for field, values in kept if field.rare},
    }
    row = rows("callback", **{name: array(f"callback_{name}", given, of) for name, (of, given) in columns.items()})
    source = sa.select(
        sa.bindparam("workflow", workflow, sa.BigInteger),
        sa.func.row_number().over(),
        *(sa.cast(row.c[name], target.c[name].type) for name in columns),
    )
    return insert(target).from_select(["workflow_id", "number", *columns], source, include_defaults=False)
