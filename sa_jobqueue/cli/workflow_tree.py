"""A workflow as a tree: each job below the last one that it waits for.

├─ 11 fetch completed
├─ 12 fetch running
└─ 13 fetch failed: no answer
   └─ 14 add_up blocked (at least 2 of 3; also behind 11, 12; 1 completed)

Levels below the 20th are numbered in place of being indented: └─ [21] 15 fetch blocked
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sa_jobqueue.log import one_line
from sa_jobqueue.statements.workflows.told import joins_of, name_of
from sa_jobqueue.urls import mask_passwords

from .output import cleaned

__all__ = ["STYLES", "tree"]

#: Nodes alike of one parent that are shown one by one, and others that are named; more are one line, or a number.
_ALIKE = 5
#: Levels that are indented.
_INDENTED = 20
STYLES = {"failed": "red", "cancelled": "yellow", "running": "bold", "completed": "green"}


@dataclass
class _Branch:
    node: Any
    home: int | None = None
    """The parent below which it is shown."""
    joins: str = ""
    """Which of its parents it needs; empty: all."""
    children: list[_Branch] = field(default_factory=list)


def tree(nodes: Sequence[Any], *, paused: bool = False) -> Iterator[tuple[str, str]]:
    """Lines with their styles. `nodes`: the rows of `workflow_nodes`; `paused`: whether the workflow is."""
    branches = {node.id: _Branch(node, joins=joins_of(node)) for node in nodes}
    roots: list[_Branch] = []
    for branch in branches.values():
        before = [one for one in branch.node.parents or () if one in branches and one < branch.node.id]
        branch.home = max(before, default=None)
        (roots if branch.home is None else branches[branch.home].children).append(branch)
    # A loop instead of calls: a chain may be longer than Python's stack.
    left = [(lines, "", 1) for lines in reversed(_alike(roots))]
    while left:
        (branch, number, last), indent, level = left.pop()
        said = _said(branch, branches, paused=paused) if number == 1 else _said_once(branch, number)
        numbered = f"[{level:,}] " if level > _INDENTED else ""
        yield f"{indent}{'└─' if last else '├─'} {numbered}{said}", STYLES.get(branch.node.status, "")
        deeper = indent + ("   " if last else "│  ") if level < _INDENTED else indent
        left += [(line, deeper, level + 1) for line in reversed(_alike(branch.children))]


def _alike(branches: Sequence[_Branch]) -> list[tuple[_Branch, int, bool]]:
    """Each with how many it stands for, and whether it is the last. Leaves alike of which there are many are one."""
    kinds = Counter(_kind(one) for one in branches if not one.children)
    shown: list[tuple[_Branch, int]] = []
    said = set[tuple[str, ...]]()
    for one in branches:
        kind = _kind(one)
        if one.children or kinds[kind] <= _ALIKE:
            shown.append((one, 1))
        elif kind not in said:
            said.add(kind)
            shown.append((one, kinds[kind]))
    return [(one, number, place == len(shown) - 1) for place, (one, number) in enumerate(shown)]


def _kind(branch: _Branch) -> tuple[str, ...]:
    return branch.node.task, branch.node.status, branch.joins


def _said(branch: _Branch, branches: Mapping[int, _Branch], *, paused: bool) -> str:
    node = branch.node
    about = "; ".join(filter(None, [branch.joins, *_others(branch), *_waits(branch, branches, paused=paused)]))
    if about:
        about = f" ({about})"
    why = ""
    if node.status in {"failed", "cancelled"} and isinstance(node.error, dict):
        why = f": {cleaned(one_line(mask_passwords(str(node.error.get('message', '')))))}"
    return f"{node.id} {cleaned(name_of(node.task))} {node.status}{about}{why}"


def _said_once(branch: _Branch, number: int) -> str:
    """For many that are alike."""
    node = branch.node
    joins = f"{branch.joins}; " if branch.joins else ""
    return f"{cleaned(name_of(node.task))} × {number:,} {node.status} ({joins}from job {node.id} on)"


def _others(branch: _Branch) -> Iterator[str]:
    """Its other parents, or how many it has if these are many."""
    parents = branch.node.parents or ()
    others = [one for one in parents if one != branch.home]
    if 0 < len(others) <= _ALIKE:
        yield f"also behind {', '.join(map(str, others))}"
    elif others and "count" not in branch.node.policies:
        yield f"of {len(parents):,}"


def _waits(branch: _Branch, branches: Mapping[int, _Branch], *, paused: bool) -> Iterator[str]:
    """For what a blocked job waits, where the tree does not show it."""
    node = branch.node
    if node.status != "blocked":
        return
    if node.blocked_by == 0:
        counted = [
            one for one, policy in zip(node.parents or (), node.policies or (), strict=True) if policy == "count"
        ]
        completed = sum(branches[one].node.status == "completed" for one in counted if one in branches)
        yield f"{completed:,} completed"
    elif node.blocked_by is not None and node.blocked_by > 0:
        if len(node.parents or ()) > 1:
            yield f"waits for {node.blocked_by}"
    elif not paused:
        yield "to be looked at"
