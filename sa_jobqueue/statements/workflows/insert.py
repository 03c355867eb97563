"""Adding members to a workflow: one call of a function of the schema, which makes one INSERT for each table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Executable,
    Integer,
    SmallInteger,
    Text,
    bindparam,
    cast,
    func,
    select,
)
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
    "tasks": (Text(), attrgetter("task")),
    "args": (Text(), attrgetter("args")),
    "queues": (Text(), attrgetter("queue")),
    "priorities": (SmallInteger(), attrgetter("priority")),
    "most_attempts": (SmallInteger(), attrgetter("max_attempts")),
    "dues": (Text(), lambda call: due_text(call.run_at)),
    "metas": (Text(), attrgetter("meta")),
    "uniqueness": (Text(), attrgetter("uniqueness")),
    "expiries": (Text(), lambda call: due_text(call.expires)),
    "deadlines": (Text(), lambda call: due_text(call.deadline)),
    "keys": (Text(), attrgetter("key")),
    "units": (SmallInteger(), attrgetter("units")),
    "subject_types": (Text(), lambda call: call.subject and call.subject.type),
    "subject_ids": (Text(), lambda call: call.subject and call.subject.id),
}


def add_members(
    workflow: int, added: MemberRows, *, outside: bool | None = None, me: int | None = None, schema: str | None = SCHEMA
) -> Executable:
    """Add these to a workflow that is there. Returns one value, an array: the ids of the jobs, in the order of the members.

    `outside`: whether another than a member of the workflow adds them; None: the workflow is new. `me`: the member that does. Fails with
    SQLSTATE SJQ04 where the workflow has ended.
    """
    arguments: list[Any] = [bindparam("workflow", workflow, BigInteger), bindparam("outside", outside, Boolean)]
    for name, (of, fill) in _OF_CALLS.items():
        arguments.append(_array(name, list(map(fill, added.calls)), of))
    arguments += [
        _array("inputs", added.inputs, SmallInteger()),
        _array("waits", added.waits, Integer()),
        _array("children", added.children, Integer()),
        _array("parents", added.parents, BigInteger()),
        _array("policies", added.policies, Text()),
        _array("positions", added.positions, Integer()),
        _array("counting", list(added.needed), Integer()),
        _array("needed", list(added.needed.values()), Integer()),
        bindparam("me", me, BigInteger),
        _array("before", added.before, Integer()),
    ]
    ids = schema_function("add_members", schema, *arguments, of=ARRAY(BigInteger))
    return select(ids.label("ids"))


def _array(name: str, values: Sequence[Any], of: TypeEngine[Any]) -> Any:
    """An array parameter, empty where it has no value at all: in the function it is as long as the others. Texts that are equal, as most
    are, are quoted once.
    """
    if values.count(None) == len(values):
        return array(name, (), of)
    if isinstance(of, Text):
        quoted = {one: packed_texts([one])[1:-1] for one in dict.fromkeys(values)}
        return array(name, _joined(quoted[one] for one in values), of)
    numbers = packed(values) if name in {"children", "parents"} else packed_alike(values)
    return array(name, _joined([numbers[1:-1]]), of)


def _joined(parts: Iterable[str]) -> Any:
    """The text of an array."""
    return f"{{{','.join(parts)}}}"


def insert_callbacks(
    workflow: int, callbacks: Sequence[tuple[str, Call]], *, callback: type[WorkflowCallback] = WorkflowCallback
) -> Executable:
    """What is to be enqueued at "success", "failure" or the "end" of the workflow."""
    columns: Mapping[str, tuple[TypeEngine[Any], list[Any]]] = {
        "event": (Text(), [event for event, _ in callbacks]),
        "task": (Text(), [call.task for _, call in callbacks]),
        "args": (Text(), [call.args for _, call in callbacks]),
        "queue": (Text(), [call.queue for _, call in callbacks]),
        "priority": (SmallInteger(), [call.priority for _, call in callbacks]),
        "max_attempts": (SmallInteger(), [call.max_attempts for _, call in callbacks]),
        "meta": (Text(), [call.meta for _, call in callbacks]),
        "delay": (Text(), [str(call.run_at.total_seconds()) for _, call in callbacks]),  # type: ignore[union-attr]
        "concurrency_key": (Text(), [call.key for _, call in callbacks]),
        "units": (SmallInteger(), [call.units for _, call in callbacks]),
        "subject_type": (Text(), [call.subject and call.subject.type for _, call in callbacks]),
        "subject_id": (Text(), [call.subject and call.subject.id for _, call in callbacks]),
    }
    row = rows("callback", **{name: array(f"callback_{name}", given, of) for name, (of, given) in columns.items()})
    target = table_of(callback)
    source = select(
        bindparam("workflow", workflow, BigInteger),
        func.row_number().over(),
        *(cast(row.c[name], target.c[name].type if name not in {"args", "meta"} else JSONB) for name in columns),
    )
    return insert(target).from_select(["workflow_id", "number", *columns], source, include_defaults=False)
