"""A workflow as few boxes: which members become one, and that no way through the graph is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.dashboard.folding import Picture, behind, folded
from sa_jobqueue.rules.lifecycle import JobStatus

BEGIN = datetime(2026, 11, 26, tzinfo=UTC)


@dataclass
class Node:
    id: int
    task: str
    parents: Sequence[int] = ()
    status: str = "completed"
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    created_at: datetime = BEGIN

    @property
    def policies(self) -> list[str]:
        return ["cancel"] * len(self.parents)


def fan(number: int, *, chained: bool = False) -> list[Node]:
    """list → index_page × number (→ count × number, each behind its own) → publish."""
    nodes = [Node(1, "list")]
    pages = [Node(2 + i, "index_page", [1]) for i in range(number)]
    last = pages
    if chained:
        last = [Node(10_000 + page.id, "count", [page.id]) for page in pages]
        nodes += last
    return [*nodes, *pages, Node(99_999, "publish", [one.id for one in last])]


def said(picture: Picture) -> list[tuple[str, int]]:
    return sorted((box.task, box.number) for box in picture.boxes)


def test_a_few_siblings_are_drawn_one_by_one() -> None:
    assert said(folded(fan(5))) == [*[("index_page", 1)] * 5, ("list", 1), ("publish", 1)]


def test_many_siblings_alike_are_one_box() -> None:
    picture = folded(fan(40))
    assert said(picture) == [("index_page", 40), ("list", 1), ("publish", 1)]
    assert sorted((one, other) for one, other, _ in picture.edges) == [(1, 2), (2, 99_999)]


def test_a_box_opens_into_its_members_where_they_are_not_too_many() -> None:
    nodes = [*fan(40), Node(100_000, "other", [1]), *[Node(200_000 + i, "mail", [99_999]) for i in range(9)]]
    opened = folded(nodes, opened=[2])
    assert said(opened) == [*[("index_page", 1)] * 40, ("list", 1), ("mail", 9), ("other", 1), ("publish", 1)]
    assert said(folded(nodes, opened=[2], most=40)) == said(folded(nodes, most=40))


def test_the_members_behind_a_member_are_counted_once() -> None:
    nodes = [
        Node(1, "a", status="failed"), Node(2, "b", [1], "blocked"), Node(3, "c", [1], "cancelled"), Node(4, "d", [2, 3], "blocked"),
        Node(5, "e"),
    ]  # fmt: skip
    assert behind(nodes, 1) == {"blocked": 2, "cancelled": 1}
    assert behind(nodes, 5) == {}


def test_each_can_be_seen_where_they_are_not_too_many() -> None:
    assert len(folded(fan(40), unfold=True).boxes) == 42
    assert len(folded(fan(400), unfold=True).boxes) == 3


def test_siblings_that_differ_are_not_one() -> None:
    """Of another task, behind another parent, or before another child."""
    nodes = [
        Node(1, "a"),
        Node(2, "a2"),
        *[Node(10 + i, "b", [1]) for i in range(6)],
        *[Node(20 + i, "c", [1]) for i in range(6)],
    ]
    nodes += [*[Node(30 + i, "b", [2]) for i in range(6)], Node(40, "d", [10])]
    assert said(folded(nodes)) == [
        ("a", 1), ("a2", 1), *[("b", 1)] * 6, ("b", 6), ("c", 6), ("d", 1),
    ]  # fmt: skip


def test_five_is_not_many() -> None:
    nodes = [Node(1, "a"), *[Node(10 + i, "b", [1]) for i in range(5)]]
    assert said(folded(nodes)) == [("a", 1), *[("b", 1)] * 5]


def test_chains_alike_are_one_chain_where_all_would_be_too_many() -> None:
    """No two of them have the same parents."""
    picture = folded(fan(200, chained=True))
    assert said(picture) == [("count", 200), ("index_page", 200), ("list", 1), ("publish", 1)]


def test_what_is_still_too_much_is_cut_and_said() -> None:
    nodes = [Node(i, f"task {i}") for i in range(500)]
    picture = folded(nodes)
    assert (len(picture.boxes), picture.hidden) == (300, 200)


def test_thousands_take_a_moment() -> None:
    picture = folded(fan(4_812))
    assert ("index_page", 4_812) in said(picture)


def test_a_box_says_when_its_members_ran() -> None:
    nodes = [Node(i, "a", status="completed", claimed_at=BEGIN + i * timedelta(minutes=1), finished_at=BEGIN + (i + 5) * timedelta(minutes=1)) for i in range(10)]  # fmt: skip
    (box,) = folded(nodes).boxes
    assert (box.started_at, box.ended_at) == (BEGIN, BEGIN + timedelta(minutes=14))
    nodes[4].status, nodes[4].finished_at = "running", None
    (box,) = folded(nodes).boxes
    assert (box.status, box.ended_at) == ("running", None)


def test_a_box_is_called_by_what_needs_a_look() -> None:
    for status in ("failed", "running", "cancelled", "queued", "blocked", "completed"):
        nodes = [Node(i, "a") for i in range(10)]
        nodes[7].status = status
        (box,) = folded(nodes).boxes
        assert box.status == status
        assert box.statuses.total() == 10


@st.composite
def graphs(draw: Any) -> list[Node]:
    nodes = []
    for id in range(1, draw(st.integers(1, 40)) + 1):
        parents = draw(st.lists(st.integers(1, id - 1), unique=True, max_size=3)) if id > 1 else []
        nodes.append(
            Node(
                id, draw(st.sampled_from("ab")), sorted(parents), draw(st.sampled_from([str(one) for one in JobStatus]))
            )
        )
    return nodes


@given(graphs(), st.integers(1, 40))
def test_a_picture_has_each_member_once_no_cycle_and_each_dependency(nodes: list[Node], most: int) -> None:
    picture = folded(nodes, most=most)
    assert len(picture.boxes) <= most
    if not picture.hidden:
        assert sum(box.number for box in picture.boxes) == len(nodes)
    edges = {(one, other) for one, other, _ in picture.edges}
    left = {box.id for box in picture.boxes}
    while left:
        first = {one for one in left if not any(other == one and before in left for before, other in edges)}
        assert first, "a cycle"
        left -= first
    if len(picture.boxes) == len(nodes):
        assert edges == {(parent, node.id) for node in nodes for parent in node.parents}
