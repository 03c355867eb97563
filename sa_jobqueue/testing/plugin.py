"""The pytest plugin: it is there wherever the package is installed.

The fixture `jobqueue` is a `JobQueue` with the session of another fixture: of `session`, or of the fixture named by the
setting `sa_jobqueue_session`. Where a test that uses it fails, its report shows the jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..enqueueing.unadded import watched_jobs
from .queue import JobQueue
from .transaction import own_session

_SETTING = "sa_jobqueue_session"
#: Where an AsyncSession keeps the event loop in which it last began, for the report after the test.
_LOOP = "sa_jobqueue_loop"
#: Seconds that such a report may take: the test may have left its connection in any state.
_PATIENCE = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's setting."""
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
    """Show the jobs in the report of a failed test with `jobqueue`."""
    report = yield
    kit = getattr(item, "funcargs", {}).get("jobqueue")
    if report.when == "call" and report.failed and isinstance(kit, JobQueue) and (text := _report(kit)):
        report.sections.append(("jobs of sa_jobqueue", text))
    return report


def _report(kit: JobQueue[Any]) -> str:
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
