"""The pytest plugin: it is there wherever the package is installed.

The fixture `jobqueue` is a `JobQueue` with the session of another fixture: the one that is called `session`, or as the setting
`sa_jobqueue_session` says. Where a test that uses it fails, its report says what became of the jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, TypeVar, overload

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..enqueueing.unadded import watched_jobs
from ..models import Job, JobMixin
from ..rules.retry import Duration
from ..tasks.registry import Registry, TaskName, default_registry
from ..tasks.tasks import AnyTask
from .clock import move_clock
from .drain import drain, work_one
from .effects import Effects, effects
from .enqueued import assert_enqueued, assert_not_enqueued, enqueued
from .explain import Explanation, explain
from .inline import Drained, Ran
from .transaction import AsyncSide, Side, SyncSide, own_session

S_co = TypeVar("S_co", bound=Side, covariant=True)


class JobQueue(Generic[S_co]):
    """The functions of `sa_jobqueue.testing` with this session, and with this registry where they take one.

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

    def _known(self, task: AnyTask | TaskName | str) -> AnyTask | TaskName | str:
        """The task of this registry, if it is given by its name."""
        return (self.registry.get(task) or task) if isinstance(task, str) else task


_SETTING = "sa_jobqueue_session"
#: Where an AsyncSession keeps the event loop in which it last began, for the report after the test.
_LOOP = "sa_jobqueue_loop"
#: Seconds that such a report may take: the test may have left its connection in any state.
_PATIENCE = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's one setting."""
    parser.addini(
        _SETTING, "the fixture that gives the Session or AsyncSession for the fixture jobqueue", default="session"
    )


@pytest.fixture
def jobqueue(request: pytest.FixtureRequest) -> Generator[JobQueue[Any]]:
    """The testing kit of sa_jobqueue with the test's own session. A job that the test makes and adds to no session is warned about."""
    name = request.config.getini(_SETTING)
    session = request.getfixturevalue(name)
    try:
        own = own_session(session)
    except TypeError as error:
        raise pytest.UsageError(
            f"the fixture {name!r} gives no session ({error}): name the one that does, {_SETTING} = ... in pytest's configuration"
        ) from None
    if isinstance(own, AsyncSession):
        event.listen(own.sync_session, "after_begin", lambda *_: own.info.update({_LOOP: asyncio.get_running_loop()}))
    with watched_jobs():
        yield JobQueue(session)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say what became of the jobs, where a test with `jobqueue` has failed."""
    report = yield
    kit = getattr(item, "funcargs", {}).get("jobqueue")
    if report.when == "call" and report.failed and isinstance(kit, JobQueue) and (said := _said(kit)):
        report.sections.append(("jobs of sa_jobqueue", said))
    return report


def _said(kit: JobQueue[Any]) -> str:
    """What waits, and why. Nothing if it cannot be read now, as when the session has failed."""
    session: Session | AsyncSession = own_session(kit.session)
    try:
        with session.no_autoflush:
            found: Any = kit.explain()
            if isinstance(session, AsyncSession):
                found = session.info[_LOOP].run_until_complete(asyncio.wait_for(found, _PATIENCE))
            return str(found)
    except Exception:
        return ""
