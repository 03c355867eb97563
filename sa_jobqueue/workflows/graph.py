"""The graph of a workflow while it is built: nodes, and what each waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from ..arguments.inputs import Failed
from ..errors import WorkflowError
from ..models import AT_ONCE, GATE
from ..sql.workflows.insert import BEGINS, BEHIND_ME, COUNTS, LATER, MemberRows
from ..tasks.calls import Call
from ..tasks.registry import TaskName
from ..tasks.tasks import Task

T_co = TypeVar("T_co", covariant=True)

#: What becomes of a child whose parent did not complete: see `WorkflowDependency.policy`.
Policy: TypeAlias = Literal["cancel", "run", "skip", "count"]

_GATE = Call(GATE, "{}", "default", 4, 1, AT_ONCE, "{}")


class Place(NamedTuple):
    """Where a node is: its number in a graph, or the job that is there already; and what becomes of its children if it does not complete."""

    graph: Graph
    number: int
    job_id: int | None = None
    policy: Policy = "cancel"

    @property
    def code(self) -> int:
        """Of the parent of an edge: the id of the job if it is there, else minus the number."""
        return -self.number if self.job_id is None else self.job_id


class Node(Generic[T_co]):
    """One job to be, of a graph. `T_co` is what its handler returns."""

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def job_id(self) -> int:
        """`Job.id`, once the workflow has been flushed. Raises WorkflowError before."""
        place = self.place
        if place.job_id is not None:
            return place.job_id
        if place.graph.ids is None:
            raise WorkflowError("the node has no job yet: add its workflow to a session, and flush")
        return place.graph.ids[place.number - 1]

    @property
    def settled(self) -> Node[T_co | Failed]:
        """This node, for a child that is to run also if it does not complete; the child is given a `Failed` in place of the result."""
        return Node(self.place._replace(policy="run"))

    def __repr__(self) -> str:
        place = self.place
        if place.job_id is not None:
            return f"<Node of job {place.job_id}>"
        return f"<Node {place.number} {place.graph.rows.calls[place.number - 1].task!r}>"


@dataclass(frozen=True, slots=True)
class Join(Generic[T_co]):
    """Nodes, and when their children are released: made by `Workflow.any`, `at_least`, `settled` and others."""

    nodes: tuple[Node[Any], ...]
    policy: Policy | None = None
    """None: that of each node."""
    needed: int | None = None
    """How many of them have to complete; None: all are waited for."""


class Graph:
    """Nodes and edges as columns, in the order in which they were added."""

    def __init__(self, me: int | None = None) -> None:
        self._me = me
        """The job that adds the nodes, which runs until they are there. It is older than they are."""
        self.rows = MemberRows()
        self.ids: Sequence[int] | None = None
        """Of the jobs, after the flush."""
        self.nested = False
        """Whether its nodes have become those of another graph."""
        self.tasks: list[Task[..., Any, Any] | TaskName | None] = []

    def add(
        self,
        task: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        parents: Iterable[Node[Any] | Join[Any]] = (),
        inputs: int | None = None,
    ) -> Node[Any]:
        """A node, which takes the results of the first `inputs` parents; 0: of all, as a list."""
        task = TaskName(task) if isinstance(task, str) else task
        if not isinstance(task, (Task, TaskName)):
            raise WorkflowError(
                f"a node is made of a task or its name, not of {task!r}: decorate the function with @task"
            )
        self.check_open()
        if inputs is None:
            call = task.call(*args, **kwargs)
        else:
            if isinstance(task, Task):
                task.inputs(inputs).resolve()
            call = task.call_after(inputs, args, kwargs)
        joins = [self._join(parent, takes=inputs is not None) for parent in parents]
        if call.columns:
            raise WorkflowError(
                "columns of your own are not filled for the jobs of a workflow: give the column a server_default, or leave it out"
            )
        return self._append(call.completed(), task, joins, inputs)

    def check_open(self) -> None:
        """Raises WorkflowError if nothing more can be added to it."""
        if self.nested:
            raise WorkflowError("this workflow is nested in another one: add to that one")
        if self.ids is not None:
            raise WorkflowError(
                "the workflow is in the database already: Workflow.of(ctx) and Workflow.at(id) add to it"
            )

    def gate(self, parents: Iterable[Node[Any] | Join[Any]]) -> Node[None]:
        """A node without a handler."""
        self.check_open()
        joins = [self._join(parent, takes=False) for parent in parents]
        if not any(join.nodes for join in joins):
            raise WorkflowError("a gate waits for some nodes, and was given none")
        return self._append(_GATE, None, joins, None)

    def _append(self, call: Call, task: Any, joins: list[Join[Any]], inputs: int | None) -> Node[Any]:
        if len(joins) > 1:
            _check_different(node for join in joins for node in join.nodes)
        rows = self.rows
        rows.calls.append(call)
        self.tasks.append(task)
        rows.inputs.append(inputs)
        rows.waits.append(BEGINS)
        number = len(rows.calls)
        position = 0
        for join in joins:
            for node in join.nodes:
                policy = join.policy or node.place.policy
                self._edge(number, node, policy, position if inputs is not None else None)
                position += 1
            if join.needed is not None:
                if number in rows.needed:
                    raise WorkflowError("a node can wait for some of its parents once: put a gate between")
                rows.needed[number] = join.needed
        return Node(Place(self, number))

    def _edge(self, child: int, parent: Node[Any], policy: Policy, position: int | None) -> None:
        rows = self.rows
        rows.children.append(child)
        rows.parents.append(parent.place.code)
        rows.policies.append(policy)
        rows.positions.append(position)
        rows.waits[child - 1] = self._first(rows.waits[child - 1], parent.place, policy)

    def _first(self, before: int, parent: Place, policy: Policy) -> int:
        """For what a child waits first that has one more parent."""
        if policy == "count":
            return COUNTS if before == BEGINS else before
        if before == LATER or (parent.job_id is not None and parent.job_id != self._me):
            return LATER
        if before == BEHIND_ME or parent.job_id is not None:
            return BEHIND_ME
        return min(before, parent.number) if before > 0 else parent.number

    def _join(self, of: Node[Any] | Join[Any], *, takes: bool) -> Join[Any]:
        join = Join((of,)) if isinstance(of, Node) else of
        if not isinstance(join, Join):
            raise WorkflowError(f"one node is expected here, not {of!r}: gather, after and join take several")
        for node in join.nodes:
            if not isinstance(node, Node):
                raise WorkflowError(f"a node waits for nodes, not for {node!r}")
            if node.place.graph is not self:
                raise WorkflowError(f"{node!r} is of another workflow: edges across workflows cannot be")
            if takes:
                self._check_recorded(node)
        _check_different(join.nodes)
        return join

    def _check_recorded(self, node: Node[Any]) -> None:
        if node.place.job_id is not None:
            return
        task = self.tasks[node.place.number - 1]
        if task is None:
            raise WorkflowError("a gate has no result: wait for it with after")
        if isinstance(task, Task) and not task.record:
            raise WorkflowError(
                f"task {task.name!r} must say record=True: its result is taken by another, and would not be stored"
            )

    def depend(self, child: Node[Any], parent: Node[Any]) -> None:
        """One more edge; refuses a cycle."""
        self.check_open()
        if child.place.graph is not self or child.place.job_id is not None:
            raise WorkflowError(f"{child!r} is not to be added with this graph")
        (only,) = self._join(parent, takes=False).nodes
        number, code = child.place.number, only.place.code
        if code < 0 and self._reaches(number, -code):
            raise WorkflowError(f"{child!r} would wait for {parent!r}, which waits for it: a cycle")
        if (number, code) in zip(self.rows.children, self.rows.parents, strict=True):
            raise WorkflowError(f"{child!r} waits for {parent!r} already")
        self._edge(number, only, parent.place.policy, None)

    def _reaches(self, target: int, start: int) -> bool:
        """Whether `start` waits for `target`, over however many others."""
        parents: dict[int, list[int]] = {}
        for child, parent in zip(self.rows.children, self.rows.parents, strict=True):
            parents.setdefault(child, []).append(-parent)
        seen, left = {start}, [start]
        while left:
            if (here := left.pop()) == target:
                return True
            for parent in parents.get(here, ()):
                if parent not in seen:
                    seen.add(parent)
                    left.append(parent)
        return False

    def nest(self, inner: Graph, after: Sequence[Node[Any]]) -> Node[None]:
        """Take all nodes of another graph into this graph: its first nodes wait for `after`. Returns a gate behind all its nodes."""
        self.check_open()
        if inner.ids is not None or inner.nested or inner is self or not inner.rows.calls:
            raise WorkflowError("a workflow to be nested has nodes, and is neither in a session nor nested already")
        offset, rows, mine = len(self.rows.calls), inner.rows, self.rows
        mine.calls += rows.calls
        self.tasks += inner.tasks
        mine.inputs += rows.inputs
        mine.waits += [wait + offset if wait > 0 else wait for wait in rows.waits]
        mine.children += [child + offset for child in rows.children]
        mine.parents += [parent - offset if parent < 0 else parent for parent in rows.parents]
        mine.policies += rows.policies
        mine.positions += rows.positions
        mine.needed |= {number + offset: needed for number, needed in rows.needed.items()}
        firsts = [number for number, wait in enumerate(rows.waits, 1) if wait == BEGINS]
        for number in firsts:
            for node in self._join(Join(tuple(after)), takes=False).nodes:
                self._edge(number + offset, node, node.place.policy, None)
        inner.nested = True
        return self.gate([Node(Place(self, number + offset)) for number in range(1, len(rows.calls) + 1)])


def joined(nodes: Iterable[Node[Any]], *, policy: Policy | None = None, needed: int | None = None) -> Join[Any]:
    """A join of these nodes. Raises WorkflowError if these are no nodes, or not enough for `needed`."""
    if isinstance(nodes, Join) or not isinstance(nodes, Iterable):
        raise WorkflowError(f"a list of nodes is expected here, not {nodes!r}")
    found = tuple(nodes)
    if needed is not None and not found:
        raise WorkflowError("some of no nodes cannot complete: any and at_least take at least one node")
    if needed is not None and (type(needed) is not int or not 1 <= needed <= len(found)):
        raise WorkflowError(f"of {len(found)} nodes, at_least can ask for 1 to {len(found)}, not for {needed!r}")
    return Join(found, policy, needed)


def _check_different(nodes: Iterable[Node[Any]]) -> None:
    codes = [node.place.code for node in nodes]
    if len(set(codes)) < len(codes):
        raise WorkflowError("a node is given twice among the parents of another")
