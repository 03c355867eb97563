"""Adding nodes to a workflow that is there already."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ..errors import WorkflowError
from ..models import SCHEMA
from ..statements.workflows.insert import add_members
from .graph import Graph, Node, Place
from .nodes import AddsNodes

__all__ = ["Addition"]


class Addition(AddsNodes):
    """More nodes of one workflow, until `insert()` is executed. `me`: the job that adds them, a member of it."""

    def __init__(self, workflow_id: int, *, me: int | None = None, schema: str = SCHEMA) -> None:
        if type(workflow_id) is not int:
            raise WorkflowError(f"a workflow is given by its id, not by {workflow_id!r}; it has one after the flush")
        self.workflow_id = workflow_id
        self._me, self._schema = me, schema
        self._graph = Graph(me)
        self._is_inserted = False

    @property
    def me(self) -> Node[Any]:
        """The job that adds these nodes, as a parent. Raises WorkflowError where none does."""
        if self._me is None:
            raise WorkflowError("the nodes are added from outside: there is no job that adds them")
        return self.node(self._me)

    def node(self, job_id: int) -> Node[Any]:
        """A job of the workflow that is there, as a parent. If its result is taken, its task must say `record=True`."""
        if type(job_id) is not int:
            raise WorkflowError(f"a job is given by its id, not by {job_id!r}; a node has it as job_id")
        return Node(Place(self._graph, 0, job_id))

    def before_children(self, *nodes: Node[Any]) -> None:
        """Let the children of the job that adds these nodes wait for them, too. They take nothing of them.

        Not those that have begun: a child that needs only some of its parents may do so while this job still runs.
        """
        _ = self.me
        self._graph.rows.before += [-node.place.code for node in nodes]

    def insert(self) -> sa.Executable:
        """The statement that adds them, for `session.execute` or `connection.execute`: `ctx.session` in a handler. Execute it once.

        Raises WorkflowError the second time: it would add them twice.

        It returns one row, with the list of their jobs' ids.

        From outside, the end of the workflow, and a pause of it, wait for the end of the caller's transaction.
        """
        if self._is_inserted:
            raise WorkflowError(
                "these nodes are inserted by a statement already, which is executed once; for more nodes make another Addition"
            )
        self._is_inserted = True
        return add_members(
            self.workflow_id, self._graph.rows, outside=self._me is None, me=self._me, schema=self._schema
        )
