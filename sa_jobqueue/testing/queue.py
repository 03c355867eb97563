"""The testing kit with a session of its own: `JobQueue`."""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, TypeVar, overload

from ..models import Job, JobMixin
from ..rules.retry import Duration
from ..tasks.registry import Registry, TaskName, default_registry
from ..tasks.tasks import AnyTask
from ..worker.running.effects import Effects
from .clock import move_clock
from .drain import check_replay, drain, effects, work_one
from .enqueued import assert_enqueued, assert_not_enqueued, enqueued
from .explain import Explanation, explain
from .inline import Drained, Ran
from .replay import Replay
from .steps import crash_after, signal
from .transaction import AsyncSide, Side, SyncSide

S_co = TypeVar("S_co", bound=Side, covariant=True)


class JobQueue(Generic[S_co]):
    """The functions of `sa_jobqueue.testing` with this session, and with this registry where they take a registry.

    With an `AsyncSession` each call is awaited.
    """

    def __init__(self, session: S_co, *, registry: Registry = default_registry) -> None:
        self.session, self.registry = session, registry

    @overload
    def drain(
        self: JobQueue[SyncSide], *, queues: Collection[str] | None = None, raise_errors: bool = True
    ) -> Drained: ...
    @overload
    def drain(
        self: JobQueue[AsyncSide], *, queues: Collection[str] | None = None, raise_errors: bool = True
    ) -> Coroutine[Any, Any, Drained]: ...
    def drain(self: JobQueue[Any], *, queues: Collection[str] | None = None, raise_errors: bool = True) -> Any:
        """Run the jobs that are due: see `drain`."""
        return drain(self.session, queues=queues, registry=self.registry, raise_errors=raise_errors)

    @overload
    def work_one(self: JobQueue[SyncSide], job: JobMixin | int | None = None, *, raise_errors: bool = True) -> Ran: ...
    @overload
    def work_one(
        self: JobQueue[AsyncSide], job: JobMixin | int | None = None, *, raise_errors: bool = True
    ) -> Coroutine[Any, Any, Ran]: ...
    def work_one(self: JobQueue[Any], job: JobMixin | int | None = None, *, raise_errors: bool = True) -> Any:
        """Run one job: see `work_one`."""
        return work_one(self.session, job, registry=self.registry, raise_errors=raise_errors)

    @overload
    def assert_enqueued(self: JobQueue[SyncSide], task: AnyTask | TaskName | str, /, **partial: Any) -> Job: ...
    @overload
    def assert_enqueued(
        self: JobQueue[AsyncSide], task: AnyTask | TaskName | str, /, **partial: Any
    ) -> Coroutine[Any, Any, Job]: ...
    def assert_enqueued(self: JobQueue[Any], task: AnyTask | TaskName | str, /, **partial: Any) -> Any:
        """Assert that such a job is enqueued: see `assert_enqueued`."""
        __tracebackhide__ = True
        return assert_enqueued(self.session, self._known(task), **partial)

    @overload
    def assert_not_enqueued(self: JobQueue[SyncSide], task: AnyTask | TaskName | str, /, **partial: Any) -> None: ...
    @overload
    def assert_not_enqueued(
        self: JobQueue[AsyncSide], task: AnyTask | TaskName | str, /, **partial: Any
    ) -> Coroutine[Any, Any, None]: ...
    def assert_not_enqueued(self: JobQueue[Any], task: AnyTask | TaskName | str, /, **partial: Any) -> Any:
        """Assert that no such job is: see `assert_not_enqueued`."""
        __tracebackhide__ = True
        return assert_not_enqueued(self.session, self._known(task), **partial)

    @overload
    def enqueued(self: JobQueue[SyncSide], task: AnyTask | TaskName | str, /, **partial: Any) -> list[Job]: ...
    @overload
    def enqueued(
        self: JobQueue[AsyncSide], task: AnyTask | TaskName | str, /, **partial: Any
    ) -> Coroutine[Any, Any, list[Job]]: ...
    def enqueued(self: JobQueue[Any], task: AnyTask | TaskName | str, /, **partial: Any) -> Any:
        """The jobs that are: see `enqueued`."""
        return enqueued(self.session, self._known(task), **partial)

    @overload
    def move_clock(self: JobQueue[SyncSide], by: Duration) -> None: ...
    @overload
    def move_clock(self: JobQueue[AsyncSide], by: Duration) -> Coroutine[Any, Any, None]: ...
    def move_clock(self: JobQueue[Any], by: Duration) -> Any:
        """Let time pass: see `move_clock`."""
        return move_clock(self.session, by, job=self.registry.job)

    @overload
    def explain(self: JobQueue[SyncSide]) -> Explanation: ...
    @overload
    def explain(self: JobQueue[AsyncSide]) -> Coroutine[Any, Any, Explanation]: ...
    def explain(self: JobQueue[Any]) -> Any:
        """Why nothing is run: see `explain`."""
        return explain(self.session, registry=self.registry)

    @overload
    def effects(self: JobQueue[SyncSide]) -> AbstractContextManager[Effects]: ...
    @overload
    def effects(self: JobQueue[AsyncSide]) -> AbstractAsyncContextManager[Effects]: ...
    def effects(self: JobQueue[Any]) -> Any:
        """What is written in the block, and then undone: see `effects`."""
        return effects(self.session)

    @overload
    def signal(
        self: JobQueue[SyncSide], name: str, payload: object = None, *, expires_in: Duration | None = None
    ) -> None: ...
    @overload
    def signal(
        self: JobQueue[AsyncSide], name: str, payload: object = None, *, expires_in: Duration | None = None
    ) -> Coroutine[Any, Any, None]: ...
    def signal(self: JobQueue[Any], name: str, payload: object = None, *, expires_in: Duration | None = None) -> Any:
        """Send a signal: see `signal`."""
        return signal(self.session, name, payload, expires_in=expires_in, job=self.registry.job)

    def crash_after(self, step: str, *, recorded: bool = True) -> AbstractContextManager[None]:
        """End a run after this step: see `crash_after`. Not awaited."""
        return crash_after(step, recorded=recorded)

    @overload
    def check_replay(self: JobQueue[SyncSide], job: JobMixin | int, *, harmless: Collection[str] = ()) -> Replay: ...
    @overload
    def check_replay(
        self: JobQueue[AsyncSide], job: JobMixin | int, *, harmless: Collection[str] = ()
    ) -> Coroutine[Any, Any, Replay]: ...
    def check_replay(self: JobQueue[Any], job: JobMixin | int, *, harmless: Collection[str] = ()) -> Any:
        """Run a handler twice, and list the calls that it repeats outside its steps: see `check_replay`."""
        return check_replay(self.session, job, harmless=harmless, registry=self.registry)

    def _known(self, task: AnyTask | TaskName | str) -> AnyTask | TaskName | str:
        """The task of this registry, if it is given by its name."""
        return (self.registry.get(task) or task) if isinstance(task, str) else task
