"""Adding members to a workflow: one call of a function of the schema, which makes one INSERT for each table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.types import TypeEngine

from ...models import SCHEMA, WorkflowCallback, due_text, schema_function
from ...options import Call
from ..parts import array, packed, packed_alike, packed_texts, rows, table_of

__all__ = ["BEGINS", "BEHIND_ME", "COUNTS", "LATER", "MemberRows", "add_members", "insert_callbacks"]

#: For what a member waits first: for nothing; for what is still to be found; for some of its parents; for the job that adds it.
BEGINS, LATER, COUNTS, BEHIND_ME = 0, -1, -2, -3


@dataclass(slots=True)
class MemberRows:
    """New members, and their edges, as columns. A member is known by its number, from 1 on."""

    calls: list[Call] = field(default_factory=list)
    inputs: list[int | None] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    """For which member each waits first; or one of the constants above."""
    children: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """A job's id; or minus the number of a member."""
    policies: list[str] = field(default_factory=list)
    positions: list[int | None] = field(default_factory=list)
    needed: dict[int, int] = field(default_factory=dict)
    """By member, how many of its parents it needs, where that is not all."""
    before: list[int] = field(default_factory=list)
    """Members for which the children of an existing job wait, too."""


#: Each array of members: its type, and what a call gives for it.
_OF_CALLS: Mapping[str, tuple[TypeEngine[Any], Callable[[Call], Any]]] = {
    "tasks": (sa.Text(), attrgetter("task")),
    "args": (sa.Text(), attrgetter("args")),
    "queues": (sa.Text(), attrgetter("queue")),
    "priorities": (sa.SmallInteger(), attrgetter("priority")),
    "most_attempts": (sa.SmallInteger(), attrgetter("max_attempts")),
    "dues": (sa.Text(), lambda call: due_text(call.run_at)),
    "metas": (sa.Text(), attrgetter("meta")),
    "uniqueness": (sa.Text(), attrgetter("uniqueness")),
    "expiries": (sa.Text(), lambda call: due_text(call.expires)),
    "deadlines": (sa.Text(), lambda call: due_text(call.deadline)),
    "keys": (sa.Text(), attrgetter("key")),
    "units": (sa.SmallInteger(), attrgetter("units")),
    "subject_types": (sa.Text(), lambda call: call.subject and call.subject.type),
    "subject_ids": (sa.Text(), lambda call: call.subject and call.subject.id),
}


def add_members(
    workflow: int, added: MemberRows, *, outside: bool | None = None, me: int | None = None, schema: str | None = SCHEMA
) -> sa.Executable:
    """Add these to a workflow that is there. Returns one value, an array: the ids of the jobs, in the order of the members.

    `outside`: whether another than a member of the workflow adds them; None: the workflow is new. `me`: the member that does. Fails with
    SQLSTATE SJQ04 where the workflow has ended.
    """
    arguments: list[Any] = [
        sa.bindparam("workflow", workflow, sa.BigInteger),
        sa.bindparam("outside", outside, sa.Boolean),
    ]
    for name, (of, fill) in _OF_CALLS.items():
        arguments.append(_array(name, list(map(fill, added.calls)), of))
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
        quoted = {one: packed_texts([one])[1:-1] for one in dict.fromkeys(values)}
        return array(name, _joined(quoted[one] for one in values), of)
    numbers = packed(values) if name in {"children", "parents"} else packed_alike(values)
    return array(name, _joined([numbers[1:-1]]), of)


def _joined(parts: Iterable[str]) -> Any:
    """The text of an array."""
    return f"{{{','.join(parts)}}}"


def insert_callbacks(
    workflow: int, callbacks: Sequence[tuple[str, Call]], *, callback: type[WorkflowCallback] = WorkflowCallback
) -> sa.Executable:
    """What is to be enqueued at "success", "failure" or the "end" of the workflow."""
    columns: Mapping[str, tuple[TypeEngine[Any], list[Any]]] = {
        "event": (sa.Text(), [event for event, _ in callbacks]),
        "task": (sa.Text(), [call.task for _, call in callbacks]),
        "args": (sa.Text(), [call.args for _, call in callbacks]),
        "queue": (sa.Text(), [call.queue for _, call in callbacks]),
        "priority": (sa.SmallInteger(), [call.priority for _, call in callbacks]),
        "max_attempts": (sa.SmallInteger(), [call.max_attempts for _, call in callbacks]),
        "meta": (sa.Text(), [call.meta for _, call in callbacks]),
        "delay": (sa.Text(), [str(call.run_at.total_seconds()) for _, call in callbacks]),  # type: ignore[union-attr]
        "concurrency_key": (sa.Text(), [call.key for _, call in callbacks]),
        "units": (sa.SmallInteger(), [call.units for _, call in callbacks]),
        "subject_type": (sa.Text(), [call.subject and call.subject.type for _, call in callbacks]),
        "subject_id": (sa.Text(), [call.subject and call.subject.id for _, call in callbacks]),
    }
    row = rows("callback", **{name: array(f"callback_{name}", given, of) for name, (of, given) in columns.items()})
    target = table_of(callback)
    source = sa.select(
        sa.bindparam("workflow", workflow, sa.BigInteger),
        sa.func.row_number().over(),
        *(sa.cast(row.c[name], target.c[name].type if name not in {"args", "meta"} else JSONB) for name in columns),
    )
    return insert(target).from_select(["workflow_id", "number", *columns], source, include_defaults=False)
