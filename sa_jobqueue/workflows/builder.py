"""`Workflow` and `Batch`: rows that bring their jobs along."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ParamSpec, Self, cast, overload

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import set_committed_value

from ..arguments.context import AsyncJobContext, JobContext
from ..arguments.storable import encode_plain, load
from ..errors import OptionError, WorkflowError
from ..models import JobMixin, WorkflowCallback, WorkflowRow, in_schema, schema_of
from ..rules.retry import Duration, checked_duration
from ..sql.workflows.insert import add_members, insert_callbacks
from ..tasks.calls import Call
from ..tasks.options import checked_limit, checked_name
from ..tasks.registry import TaskName
from ..tasks.tasks import Task
from ..util.schema import SCHEMA
from .graph import Graph, Node, Place
from .nodes import AddsNodes, AddsOnly


class Addition(AddsNodes):
    """More nodes of a workflow, until `insert()` is executed. `me`: the job that adds them, a member of it."""

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


F = ParamSpec("F")
P = ParamSpec("P")

_RETAIN = 7 * 86_400.0


class _Built(AddsOnly):
    """What `Workflow` and `Batch` share."""

    _callbacks: list[tuple[str, Call]]

    def __init__(
        self,
        name: str = "workflow",
        *,
        deadline: Duration | datetime | None = None,
        fail_fast: bool = False,
        retain: Duration | None = _RETAIN,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """A workflow without jobs yet; `session.add` brings it, with the jobs that it has then, into the session's transaction.

        `deadline`: seconds or a timedelta from the INSERT, or a datetime with a time zone: what has not ended by then is cancelled.
        `fail_fast`: cancel all jobs when a job has failed. `retain`: how long it stays after its end, with all its jobs, in seconds or as a
        timedelta; None: forever. A failed workflow stays for at least 30 days. `meta`: plain JSON to find it by.

        Raises OptionError for any other value.
        """
        super().__init__()
        row = cast(Any, self)
        row.name = checked_name(name, "name", OptionError)
        if not isinstance(fail_fast, bool):
            raise OptionError(f"fail_fast must be True or False, not {fail_fast!r}")
        row.fail_fast = fail_fast
        if deadline is not None:
            row.deadline_at = checked_limit(deadline, "deadline", OptionError)
        if retain is not None:
            row.retain = checked_duration(retain, "retain")
        if meta is not None:
            row.meta = load(encode_plain(dict(meta), what="meta", item=""))
        self._graph = Graph()
        self._callbacks = []

    @overload
    def on_success(self, task: Task[F, P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def on_success(self, task: str | TaskName, /, **kwargs: Any) -> None: ...
    def on_success(self, task: Any, /, *args: Any, **kwargs: Any) -> None:
        """Enqueue this job once all have completed."""
        self._call_back("success", task, args, kwargs)

    @overload
    def on_failure(self, task: Task[F, P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def on_failure(self, task: str | TaskName, /, **kwargs: Any) -> None: ...
    def on_failure(self, task: Any, /, *args: Any, **kwargs: Any) -> None:
        """Enqueue this job once the first has failed for good, or the deadline of the workflow is over.

        The other jobs go on after a failure, unless `fail_fast` says otherwise.
        """
        self._call_back("failure", task, args, kwargs)

    @overload
    def on_end(self, task: Task[F, P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def on_end(self, task: str | TaskName, /, **kwargs: Any) -> None: ...
    def on_end(self, task: Any, /, *args: Any, **kwargs: Any) -> None:
        """Enqueue this job once all jobs have ended, in any way, and again after a retry of the workflow."""
        self._call_back("end", task, args, kwargs)

    @classmethod
    def in_schema_of(cls, job: type[JobMixin], /) -> type[Self]:
        """This class for the jobs of a table of your own, see `JobMixin`: its tables are in their schema."""
        made: type[Self] = in_schema(cast(Any, cls), schema_of(job))
        return made

    def _call_back(self, happened: str, task: Any, args: Any, kwargs: Any) -> None:
        if self._graph.nested:
            raise WorkflowError("this workflow is nested in another one: let that one call back")
        if self._graph.ids is not None:
            raise WorkflowError("the workflow is in the database already: say what it calls back before the flush")
        task = TaskName(task) if isinstance(task, str) else task
        if not isinstance(task, (Task, TaskName)):
            raise WorkflowError(f"what is called back is a task, not {task!r}")
        call: Call = task.call(*args, **kwargs).completed()
        if call.uniqueness is not None or call.expires is not None or call.deadline is not None:
            raise WorkflowError("what is called back can be no unique job, and have no expiry and no deadline")
        if call.columns:
            raise WorkflowError("columns of your own are not filled for what is called back")
        if not isinstance(call.run_at, timedelta):
            raise WorkflowError("what is called back is due at once, or after a delay, and not at a time")
        self._callbacks.append((happened, call))

    def _close(self) -> None:
        """A workflow that was loaded takes no more jobs by itself."""
        self._graph = Graph()
        self._graph.ids = ()
        self._callbacks = []

    def _insert(self, connection: sa.Connection) -> None:
        row = cast(WorkflowRow, self)
        if self._graph.nested:
            raise WorkflowError(f"workflow {row.name!r} is nested in another one: add that one to the session")
        if isinstance(row.deadline_at, timedelta):
            set_committed_value(row, "deadline_at", row.created_at + row.deadline_at)
        schema = cast(Any, row.__table__).schema
        if self._callbacks:
            callback = in_schema(WorkflowCallback, schema)
            connection.execute(insert_callbacks(row.id, self._callbacks, callback))
        self._graph.ids = connection.scalar(add_members(row.id, self._graph.rows, schema=schema)) or []


class Workflow(AddsNodes, _Built, WorkflowRow):
    """A graph of jobs: `session.add(workflow)` enqueues all of them, in the caller's transaction.

    >>> from sa_jobqueue import TaskName, Workflow
    >>> workflow = Workflow("import", deadline=3600)
    >>> fetched = workflow.add(TaskName("shop.fetch"), page=1)
    >>> workflow.after(fetched, TaskName("shop.index"))
    <Node 2 'shop.index'>
    """

    def nest(self, inner: Workflow, /, *after: Node[Any]) -> Node[None]:
        """Take all nodes of another workflow into this workflow; its first nodes wait for `after`. Returns a gate behind all its nodes.

        `inner` is no workflow of its own then: its name, its deadline and what it would call back are not kept, so it may have neither
        of the last two. Its nodes cannot be used any more: wait for the gate.
        """
        if inner._callbacks or inner.deadline_at is not None:
            raise WorkflowError("a workflow to be nested has no deadline, and calls nothing back: the outer one does")
        return self._graph.nest(inner._graph, after)

    @classmethod
    def of(cls, ctx: JobContext | AsyncJobContext) -> Addition:
        """What adds nodes to the workflow of the job that runs. Raises WorkflowError if it is in none.

        `ctx.session.execute(addition.insert())` adds them together with the job's completion, or not at all.
        """
        if (found := ctx.workflow_id) is None:
            raise WorkflowError(f"job {ctx.job_id} is in no workflow: nothing can be added to it")
        return Addition(found, me=ctx.job_id, schema=schema_of(cls))

    @classmethod
    def at(cls, id: int) -> Addition:
        """What adds nodes to a workflow that is there, from outside. The INSERT fails if the workflow has ended."""
        return Addition(id, schema=schema_of(cls))


class Batch(_Built, WorkflowRow):
    """Jobs that wait for nothing, with callbacks: `session.add(batch)` enqueues all of them, in the caller's transaction."""


@event.listens_for(_Built, "after_insert", propagate=True)
def _insert_members(mapper: Mapper[Any], connection: sa.Connection, workflow: Any) -> None:
    workflow._insert(connection)  # noqa: SLF001


@event.listens_for(_Built, "load", propagate=True)
def _loaded(workflow: Any, context: object) -> None:
    workflow._close()  # noqa: SLF001
