"""Graphs as they are built: edges, joins, and what is refused before any SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from sa_jobqueue import Batch, Failed, Registry, TaskName, Unique, Workflow, task
from sa_jobqueue.arguments.context import ClaimedJob, JobContext
from sa_jobqueue.errors import OptionError, PayloadError, TaskError, WorkflowError
from sa_jobqueue.sql.workflows.insert import BEGINS, COUNTS, LATER
from sa_jobqueue.workflows import Node

registry = Registry()


@task(record=True, registry=registry, name="fetch")
def fetch(url: str) -> bytes:
    return url.encode()


@task(record=True, registry=registry, name="count")
async def count(data: bytes, unit: str = "words") -> int:
    return len(data)


@task(registry=registry, name="add_up")
def add_up(parts: Sequence[int], label: str = "") -> None: ...


@task(registry=registry, name="nothing")
def nothing() -> None: ...


def edges(workflow: Workflow) -> list[tuple[int, int, str, int | None]]:
    """Child, parent, policy, position."""
    rows = workflow._graph.rows
    return list(zip(rows.children, rows.parents, rows.policies, rows.positions, strict=True))


def waits(workflow: Workflow) -> list[int]:
    return workflow._graph.rows.waits


def test_a_child_waits_for_its_parent_and_takes_its_result_at_first() -> None:
    """What is given is checked now; the rest is the parent's."""
    w = Workflow()
    child = w.then(w.add(fetch, "a"), count, unit="lines")

    assert edges(w) == [(2, -1, "cancel", 0)]
    assert waits(w) == [BEGINS, 1]
    assert [call.args for call in w._graph.rows.calls] == ['{"url":"a"}', '{"unit":"lines"}']
    assert w._graph.rows.inputs == [None, 1]
    assert repr(child) == "<Node 2 'count'>"


def test_a_gather_takes_all_in_their_order() -> None:
    """With a position for each, and one wait: for the first."""
    w = Workflow()
    counts = [w.then(w.add(fetch, url), count) for url in "ab"]
    w.gather(counts[::-1], add_up, "x")

    assert edges(w)[2:] == [(5, -4, "cancel", 0), (5, -2, "cancel", 1)]
    assert waits(w)[4] == 2
    assert w._graph.rows.inputs[4] == 0


def test_joins_say_what_is_to_become_of_the_child() -> None:
    """By the policy of their edges, and how many are needed."""
    w = Workflow()
    nodes = [w.add(count, b"", unit=unit) for unit in "ab"]
    w.gather(w.settled(nodes), add_up_partial)
    w.gather(w.completed(nodes), add_up)
    w.gather(w.any(nodes), add_up)
    w.after(w.at_least(2, nodes), nothing)
    w.then(nodes[0].settled, one)

    assert [policy for _, _, policy, _ in edges(w)] == ["run"] * 2 + ["skip"] * 2 + ["count"] * 4 + ["run"]
    assert w._graph.rows.needed == {5: 1, 6: 2}
    assert waits(w)[4:6] == [COUNTS, COUNTS]


@task(registry=registry, name="add_up_partial")
def add_up_partial(parts: Sequence[int | Failed]) -> None: ...


@task(registry=registry, name="add_two")
def add_two(one: bytes, two: bytes) -> None: ...


@task(registry=registry, name="one")
def one(part: int | Failed) -> None: ...


def test_a_workflow_of_a_job_that_is_there_is_looked_at() -> None:
    """For which job a child waits first is known only in the database."""
    more = Workflow.at(7)
    more.after([more.node(3)], nothing)
    assert more._graph.rows.waits == [LATER]
    assert more._graph.rows.parents == [3]


def test_a_gate_saves_edges() -> None:
    """N parents and M children have N + M edges by it."""
    w = Workflow()
    gate = w.gate(*(w.add(nothing) for _ in range(10)))
    for _ in range(10):
        w.after(gate, nothing)
    assert len(edges(w)) == 20


@pytest.mark.parametrize("length", [1, 2, 50])
def test_a_cycle_is_refused(length: int) -> None:
    """However long it is; what is no cycle is not."""
    w = Workflow()
    first = node = w.add(nothing)
    for _ in range(length - 1):
        node = w.after(node, nothing)
    with pytest.raises(WorkflowError, match="a cycle"):
        w.depend(first, node)
    w.depend(node, w.add(nothing))
    w.depend(w.add(nothing), first)


def test_a_dependency_is_said_once() -> None:
    """There is one edge between two nodes."""
    w = Workflow()
    parent = w.add(nothing)
    child = w.after(parent, nothing)
    with pytest.raises(WorkflowError, match="already"):
        w.depend(child, parent)
    with pytest.raises(WorkflowError, match="twice"):
        w.after([parent, parent], nothing)


def test_a_nested_workflow_becomes_nodes_behind_a_gate() -> None:
    """Its first ones wait for what is said."""
    inner = Workflow("inner")
    inner.then(inner.add(fetch, "a"), count)
    w = Workflow()
    begin = w.add(nothing)
    w.after(w.nest(inner, begin), nothing)

    assert [call.task for call in w._graph.rows.calls] == ["nothing", "fetch", "count", "(gate)", "nothing"]
    assert sorted(edges(w)) == [
        (2, -1, "cancel", None), (3, -2, "cancel", 0), (4, -3, "cancel", None), (4, -2, "cancel", None), (5, -4, "cancel", None),
    ]  # fmt: skip
    assert waits(w) == [BEGINS, 1, 2, 2, 4]
    for refused in (lambda: inner.add(nothing), lambda: inner.on_end(nothing), lambda: w.nest(inner)):
        with pytest.raises(WorkflowError, match="nested"):
            refused()


def test_after_the_flush_a_workflow_takes_nothing_more() -> None:
    """What would be lost is refused: nodes, edges, gates and callbacks."""
    w = Workflow()
    one, two = w.add(nothing), w.add(nothing)
    w._graph.ids = (1, 2)
    for refused in (
        lambda: w.add(nothing),
        lambda: w.depend(one, two),
        lambda: w.gate(one),
        lambda: w.nest(Workflow()),
        lambda: w.on_end(nothing),
    ):
        with pytest.raises(WorkflowError, match="in the database already"):
            refused()


def test_what_cannot_be_is_refused() -> None:
    """Before any SQL, with what to do about it."""
    w, other = Workflow(), Workflow()
    node, page = w.add(nothing), w.add(fetch, "a")
    for refused, said in {
        lambda: w.add(fetch.handler): "decorate the function",
        lambda: other.after(node, nothing): "another workflow",
        lambda: w.after([3], nothing): "waits for nodes",
        w.gate: "was given none",
        lambda: w.at_least(2, [node]): "ask for 1 to 1, not for 2",
        lambda: w.any([]): "at least one node",
        lambda: w.at_least([node], 1): "a list of nodes is expected here, not 1",  # type: ignore[arg-type]
        lambda: w.gather_partial(w.any([node]), add_up_partial): "a list of nodes",  # type: ignore[call-overload]
        lambda: w.then([node], count): "one node is expected here",  # type: ignore[call-overload]
        lambda: w.then(w.gate(node), one): "a gate has no result",  # type: ignore[call-overload]
        lambda: w.join(page, page, add_two): "given twice",
        lambda: w.gate(node, node): "given twice",
        lambda: Workflow.at(None): "by its id, not by None",  # type: ignore[arg-type]
        lambda: Workflow.at(1).node(node): "a node has it as job_id",  # type: ignore[arg-type]
        lambda: w.then(node, count): "must say record=True",
        lambda: w.nest(Workflow()): "has nodes",
        lambda: node.job_id: "flush",
        lambda: Workflow.at(1).me: "from outside",
        lambda: w.on_end(3): "is a task",
        lambda: w.on_end(TaskName("t").options(unique=Unique("k"))): "no unique job",
        lambda: w.on_end(TaskName("t").options(run_at=datetime.now(UTC))): "not at a time",
    }.items():
        with pytest.raises(WorkflowError, match=said):
            refused()  # type: ignore[no-untyped-call]


def test_what_is_given_is_checked_as_enqueue_does() -> None:
    """Its errors are those of `enqueue`."""
    w = Workflow()
    page = w.add(fetch, "a")
    with pytest.raises(PayloadError, match="unit"):
        w.then(page, count, unit=3)  # type: ignore[call-overload]
    with pytest.raises(PayloadError, match="unknown argument data"):
        w.then(page, count, data=b"")  # type: ignore[call-overload]
    with pytest.raises(TaskError, match="the result of another job"):
        w.then(page, nothing)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="name"):
        Workflow("")
    with pytest.raises(OptionError, match="fail_fast"):
        Workflow(fail_fast=1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="deadline"):
        Workflow(deadline=0)


def test_only_a_member_adds_to_its_workflow() -> None:
    """The context says which that is."""

    def context(extra: str | None) -> JobContext:
        job = ClaimedJob(3, 1, "default", "t", 4, 0.0, 1, 10, 0, "{}", "{}", 0.0, extra)
        no: Any = None
        return JobContext(job, no, no, no, 0, no)

    assert Workflow.of(context('{"workflow": 7}')).workflow_id == 7
    assert Workflow.of(context('{"workflow": 7}')).me.job_id == 3
    with pytest.raises(WorkflowError, match="in no workflow"):
        Workflow.of(context(None))


def test_a_batch_has_no_edges() -> None:
    """Only what is added, and callbacks."""
    batch = Batch("mails")
    nodes: list[Node[Any]] = [batch.add(nothing) for _ in range(3)]
    batch.on_success(nothing)
    batch.on_failure("shop.notify", order=3)
    assert [node.place.number for node in nodes] == [1, 2, 3]
    assert not hasattr(batch, "then")
