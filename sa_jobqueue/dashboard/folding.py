"""A workflow as few boxes: similar members share a box, so that thousands can be drawn. Pure: no SQL.

A box stands for members of one task. In a graph that is small enough to be drawn, they wait for the same jobs, and the same jobs wait for
them. In a larger graph their paths through the graph are similar, or at least the paths to them; in the largest graphs a box is all members
of a task at one depth.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from ..rules.lifecycle import FINISHED, JobStatus

#: Boxes that are drawn at most: dagre lays these out in 63 ms (2026-11).
MOST_BOXES = 300
#: From this number on, similar siblings share a box, even in a small graph.
_ALIKE = 6

#: The status of a box: the first of these that any member has.
_LOUDEST = (
    JobStatus.FAILED, JobStatus.RUNNING, JobStatus.CANCELLED, JobStatus.QUEUED, JobStatus.BLOCKED, JobStatus.COMPLETED,
)  # fmt: skip

Key: TypeAlias = Callable[[int], Hashable]


@dataclass(slots=True)
class Box:
    """Members of a task that are drawn together."""

    id: int
    """Of its first member."""
    task: str
    number: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    created_at: datetime | None = None
    """When its first member was made."""
    started_at: datetime | None = None
    """When the first of them was claimed; None: none was."""
    ended_at: datetime | None = None
    """When the last of them ended; None: some have not."""

    @property
    def status(self) -> str:
        """The status of its members; if they differ, the status that needs the most attention."""
        return next(status.value for status in _LOUDEST if self.statuses[status.value])


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes and their order."""

    boxes: Sequence[Box]
    edges: Sequence[tuple[int, int, str]]
    """From a box to another, by their ids, and what becomes of the second if the first does not complete: see `WorkflowDependency`."""
    hidden: int = 0
    """Boxes that are not drawn."""


def folded(
    nodes: Sequence[Any], *, most: int = MOST_BOXES, unfold: bool = False, opened: Collection[int] = ()
) -> Picture:
    """The picture of these members, rows of `workflow_graph`. `unfold`: a box for each member, if there are at most `most`; `opened`: the
    ids of groups whose members have a box each, if the picture then has at most `most` boxes.
    """
    graph = _Graph(nodes)
    if unfold and len(nodes) <= most:
        return graph.picture(lambda member: member, most)
    # In a small graph, members are still distinguished by their parents and children.
    keys = [graph.siblings] if len(nodes) <= most else [graph.both_ways, graph.above]
    for key in keys:
        made = key()
        if len({made(member) for member in graph.tasks}) <= most:
            return graph.picture(graph.opened(made, opened, most), most)
    return graph.picture(graph.opened(graph.by_depth(), opened, most), most)


def behind(nodes: Sequence[Any], id: int) -> Counter[str]:
    """The numbers by status of the members that wait for this member, and for these members, and so on."""
    graph, found = _Graph(nodes), {id}
    order = [id]
    for member in order:
        new = {child for child, _ in graph.children[member]} - found
        found |= new
        order += new
    return Counter(node.status for node in nodes if node.id in found and node.id != id)


class _Graph:
    """Members, with the parents and children among them."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes
        self.tasks: dict[int, str] = {node.id: node.task for node in nodes}
        self.parents: dict[int, list[tuple[int, str]]] = {}
        self.children: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        for node in nodes:
            before = zip(node.parents or (), node.policies or (), strict=True)
            self.parents[node.id] = [link for link in before if link[0] in self.tasks]
            for parent, policy in self.parents[node.id]:
                self.children[parent].append((node.id, policy))

    def siblings(self) -> Key:
        """Members that wait for the same jobs, and for which the same jobs wait; if they are many."""
        kinds = {
            member: (task, tuple(self.parents[member]), tuple(sorted(self.children[member])))
            for member, task in self.tasks.items()
        }
        numbers = Counter(kinds.values())
        return lambda member: kinds[member] if numbers[kinds[member]] >= _ALIKE else member

    def opened(self, key: Key, ids: Collection[int], most: int) -> Key:
        """The key, except that each member of the boxes with these ids has a box of its own."""
        open_keys = {key(member) for member in ids if member in self.tasks}

        def opened(member: int) -> Hashable:
            return ("opened", member) if key(member) in open_keys else key(member)

        return opened if len({opened(member) for member in self.tasks}) <= most else key

    def above(self) -> Key:
        """Members with similar paths to them."""
        return self._alike(self._in_order(), self.parents, lambda member: self.tasks[member])

    def both_ways(self) -> Key:
        """Members with similar paths to and from them."""
        return self._alike(reversed(self._in_order()), self.children, self.above())

    def by_depth(self) -> Key:
        """Members of a task at the same depth."""
        depths: dict[int, int] = {}
        for member in self._in_order():
            depths[member] = 1 + max((depths[parent] for parent, _ in self.parents[member]), default=0)
        return lambda member: (self.tasks[member], depths[member])

    def picture(self, key: Key, most: int) -> Picture:
        """A box for each key, for the first `most` keys."""
        boxes: dict[Hashable, Box] = {}
        home: dict[int, int] = {}
        for node in self.nodes:
            box = boxes.setdefault(key(node.id), Box(node.id, node.task))
            home[node.id] = box.id
            box.number += 1
            box.statuses[node.status] += 1
            box.created_at = _least(box.created_at, node.created_at)
            box.started_at = _least(box.started_at, node.claimed_at)
            if node.finished_at is not None:
                box.ended_at = max(box.ended_at or node.finished_at, node.finished_at)
        for box in boxes.values():
            if any(number and JobStatus(status) not in FINISHED for status, number in box.statuses.items()):
                box.ended_at = None
        drawn = list(boxes.values())[:most]
        there = {box.id for box in drawn}
        edges: dict[tuple[int, int], str] = {}
        for member, parents in self.parents.items():
            for parent, policy in parents:
                edge = home[parent], home[member]
                if edge[0] in there and edge[1] in there:
                    edges[edge] = policy
        return Picture(drawn, [(*edge, policy) for edge, policy in edges.items()], len(boxes) - len(drawn))

    def _alike(
        self, order: Iterable[int], neighbours: Mapping[int, list[tuple[int, str]]], first: Callable[[int], Hashable]
    ) -> Key:
        """Number the kinds: two members are of the same kind if `first` and the kinds of their neighbours are equal."""
        numbers: dict[Hashable, int] = {}
        kinds: dict[int, int] = {}
        for member in order:
            kind = first(member), frozenset((kinds[other], policy) for other, policy in neighbours[member])
            kinds[member] = numbers.setdefault(kind, len(numbers))
        return kinds.__getitem__

    def _in_order(self) -> list[int]:
        """All members after their parents, even if a member was added before its parent."""
        left = {member: len(parents) for member, parents in self.parents.items()}
        order = [member for member, number in left.items() if not number]
        for member in order:
            for child, _ in self.children[member]:
                left[child] -= 1
                if not left[child]:
                    order.append(child)
        return order


def _least(first: datetime | None, other: datetime | None) -> datetime | None:
    return other if first is None else first if other is None else min(first, other)
