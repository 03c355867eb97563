"""What adds nodes to a graph, with types: what a parent returns must fit what its child takes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, overload

from ..arguments.inputs import Failed
from ..tasks.registry import TaskName
from ..tasks.tasks import Task
from .graph import Graph, Join, Node, joined

F = ParamSpec("F")
P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

Async: TypeAlias = Coroutine[Any, Any, R]
"""What a call of an `async def` handler returns."""
Nodes: TypeAlias = Sequence[Node[A]] | Join[A]
"""Several parents."""


class AddsOnly:
    """Adds nodes that wait for nothing."""

    _graph: Graph

    @overload
    def add(self, task: Task[F, P, Async[R]], /, *args: P.args, **kwargs: P.kwargs) -> Node[R]: ...
    @overload
    def add(self, task: Task[F, P, R], /, *args: P.args, **kwargs: P.kwargs) -> Node[R]: ...
    @overload
    def add(self, task: str | TaskName, /, **kwargs: Any) -> Node[Any]: ...
    def add(self, task: Any, /, *args: Any, **kwargs: Any) -> Node[Any]:
        """A job with these arguments, as `enqueue` would make it. It waits for nothing.

        Raises what `enqueue` raises, and WorkflowError once the graph is in the database.
        """
        return self._graph.add(task, args, kwargs)


class AddsNodes(AddsOnly):
    """Adds nodes that wait for others.

    Where a child takes what its parents return, these fill its first parameters, and the call gives the others. A parent's task must say
    `record=True`.
    """

    @overload
    def then(
        self, parent: Node[A], task: Task[F, Concatenate[A, P], Async[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def then(
        self, parent: Node[A], task: Task[F, Concatenate[A, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def then(self, parent: Node[Any], task: str | TaskName, /, **kwargs: Any) -> Node[Any]: ...
    def then(self, parent: Node[Any], task: Any, /, *args: Any, **kwargs: Any) -> Node[Any]:
        """A job that takes the result of `parent` as its first argument.

        If the parent does not complete, the job is cancelled, unless it is given `parent.settled`: then it gets a `Failed`.
        """
        return self._graph.add(task, args, kwargs, parents=[parent], inputs=1)

    @overload
    def join(
        self,
        one: Node[A],
        two: Node[B],
        task: Task[F, Concatenate[A, B, P], Async[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def join(
        self, one: Node[A], two: Node[B], task: Task[F, Concatenate[A, B, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def join(
        self,
        one: Node[A],
        two: Node[B],
        three: Node[C],
        task: Task[F, Concatenate[A, B, C, P], Async[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def join(
        self,
        one: Node[A],
        two: Node[B],
        three: Node[C],
        task: Task[F, Concatenate[A, B, C, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    def join(self, one: Any, two: Any, task: Any, /, *args: Any, **kwargs: Any) -> Node[Any]:
        """A job that takes the results of two or three parents as its first arguments."""
        parents = [one, two]
        if isinstance(task, Node):
            task, parents, args = args[0], [one, two, task], args[1:]
        return self._graph.add(task, args, kwargs, parents=parents, inputs=len(parents))

    @overload
    def gather(
        self,
        parents: Nodes[A],
        task: Task[F, Concatenate[Sequence[A], P], Async[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def gather(
        self, parents: Nodes[A], task: Task[F, Concatenate[Sequence[A], P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def gather(
        self, parents: Nodes[A], task: Task[F, Concatenate[list[A], P], Async[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def gather(
        self, parents: Nodes[A], task: Task[F, Concatenate[list[A], P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def gather(
        self,
        parents: Nodes[A],
        task: Task[F, Concatenate[Iterator[A], P], Async[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def gather(
        self, parents: Nodes[A], task: Task[F, Concatenate[Iterator[A], P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def gather(
        self,
        parents: Nodes[A],
        task: Task[F, Concatenate[AsyncIterator[A], P], Async[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def gather(
        self,
        parents: Nodes[A],
        task: Task[F, Concatenate[AsyncIterator[A], P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def gather(self, parents: Nodes[Any], task: str | TaskName, /, **kwargs: Any) -> Node[Any]: ...
    def gather(self, parents: Any, task: Any, /, *args: Any, **kwargs: Any) -> Node[Any]:
        """A job that takes the results of all these parents as its first argument, in their order: a list; or an iterator, which reads
        page by page, where its parameter is annotated `Iterator[...]`, in an `async def` `AsyncIterator[...]`.

        `parents`: nodes; or what `any`, `at_least`, `settled` or `completed` made of nodes.
        """
        return self._graph.add(task, args, kwargs, parents=[_all(parents)], inputs=0)

    @overload
    def gather_partial(
        self,
        parents: Sequence[Node[A]],
        task: Task[F, Concatenate[Sequence[A | Failed], P], Async[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def gather_partial(
        self,
        parents: Sequence[Node[A]],
        task: Task[F, Concatenate[Sequence[A | Failed], P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def gather_partial(
        self,
        parents: Sequence[Node[A]],
        task: Task[F, Concatenate[list[A | Failed], P], Async[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def gather_partial(
        self,
        parents: Sequence[Node[A]],
        task: Task[F, Concatenate[list[A | Failed], P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Node[R]: ...
    @overload
    def gather_partial(self, parents: Sequence[Node[Any]], task: str | TaskName, /, **kwargs: Any) -> Node[Any]: ...
    def gather_partial(self, parents: Any, task: Any, /, *args: Any, **kwargs: Any) -> Node[Any]:
        """Like `gather`, but released once every parent has ended; a parent that did not complete contributes a `Failed`."""
        return self._graph.add(task, args, kwargs, parents=[self.settled(parents)], inputs=0)

    @overload
    def after(
        self, parents: Node[Any] | Nodes[Any], task: Task[F, P, Async[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def after(
        self, parents: Node[Any] | Nodes[Any], task: Task[F, P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[R]: ...
    @overload
    def after(self, parents: Node[Any] | Nodes[Any], task: str | TaskName, /, **kwargs: Any) -> Node[Any]: ...
    def after(self, parents: Any, task: Any, /, *args: Any, **kwargs: Any) -> Node[Any]:
        """A job that waits for these parents, and takes nothing of them."""
        return self._graph.add(task, args, kwargs, parents=[_all(parents)])

    def gate(self, *parents: Node[Any] | Join[Any]) -> Node[None]:
        """A node without a job to run, for which others can wait: N parents and M children have N + M edges by it, and not N × M."""
        return self._graph.gate(parents)

    def depend(self, child: Node[Any], *parents: Node[Any]) -> None:
        """Let `child` wait for more parents, without taking their results. Raises WorkflowError where that would be a cycle."""
        for parent in parents:
            self._graph.depend(child, parent)

    @staticmethod
    def all(nodes: Iterable[Node[A]]) -> Join[A]:
        """All of these: a child is released when each has completed."""
        return joined(nodes)

    @staticmethod
    def any(nodes: Iterable[Node[A]]) -> Join[A]:
        """One of these: a child is released when the first has completed, and takes the results that are there when it runs."""
        return joined(nodes, policy="count", needed=1)

    @staticmethod
    def at_least(number: int, nodes: Iterable[Node[A]]) -> Join[A]:
        """Some of these: a child is released when `number` of them have completed, and cancelled when that cannot come any more.

        A child that gathers takes the results that are there when it runs.
        """
        return joined(nodes, policy="count", needed=number)

    @staticmethod
    def settled(nodes: Iterable[Node[A]]) -> Join[A | Failed]:
        """All of these, however they end: a parent that did not complete contributes a `Failed`."""
        return joined(nodes, policy="run")

    @staticmethod
    def completed(nodes: Iterable[Node[A]]) -> Join[A]:
        """All of these, however they end; parents that did not complete are left out."""
        return joined(nodes, policy="skip")


def _all(parents: Any) -> Any:
    return parents if isinstance(parents, (Node, Join)) else joined(parents)
