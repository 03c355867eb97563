"""The worker before it has a database: where it can run at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import QueueState, Registry, Worker, WorkerState
from sa_jobqueue.errors import ConfigurationError

NOWHERE = "postgresql://me@127.0.0.1:1/nowhere"


class Theirs(Session):
    """A session class of the application's."""


async def test_run_in_a_running_loop_points_to_serve() -> None:
    """It would block the loop that it is called in."""
    with pytest.raises(ConfigurationError, match=r"an event loop is running here: use `await worker\.serve\(\)`"):
        Worker(NOWHERE, {"default": 1}).run()


def test_run_on_a_thread_says_what_to_use_instead() -> None:
    """Not what Python's `signal` says of itself."""
    with (
        ThreadPoolExecutor() as threads,
        pytest.raises(ConfigurationError, match=r"use `asyncio\.run\(worker\.serve\(\)\)`"),
    ):
        threads.submit(Worker(NOWHERE, {"default": 1}).run).result()


def test_a_command_may_limit_a_worker_that_the_application_has_made() -> None:
    """What it does not say stays as the application has said it."""
    worker = Worker(NOWHERE, {"default": 1}, max_jobs=7, max_memory=2**30)
    worker.limit(max_jobs=5)
    assert (worker._spec.max_jobs, worker._spec.max_memory) == (5, 2**30)
    with pytest.raises(ConfigurationError, match="max_memory must be an integer from 1"):
        worker.limit(max_memory=0)


def test_sessions_come_from_the_registry_unless_the_worker_has_its_own() -> None:
    """It is looked at when it is set, as the worker's is."""
    registry, own = Registry(sessionmaker=sessionmaker(class_=Theirs)), sessionmaker()
    registry.async_sessionmaker = async_sessionmaker()

    sessions = Worker(NOWHERE, {"default": 1}, registry=registry)._spec.sessions
    assert (sessions.maker, sessions.async_maker) == (registry.sessionmaker, registry.async_sessionmaker)
    assert Worker(NOWHERE, {"default": 1}, registry=registry, sessionmaker=own)._spec.sessions.maker is own

    with pytest.raises(ConfigurationError, match="sessionmaker makes a Session for each job"):
        Registry(sessionmaker=scoped_session(own))
    with pytest.raises(
        ConfigurationError, match="async_sessionmaker makes Session objects; an AsyncSession is expected"
    ):
        registry.async_sessionmaker = own  # type: ignore[assignment]


def test_a_worker_that_has_not_begun_has_a_state() -> None:
    """Its slots are free."""
    free = QueueState(slots=2, running=0, waiting=0, stuck=0, paused=False)
    state = Worker(NOWHERE, {"mail": 2, "default": 2}).state()
    assert state == WorkerState(serving=False, queues={"mail": free, "default": free}, counts={})
    assert (state.slots, state.running, state.waiting, state.stuck) == (4, 0, 0, 0)
