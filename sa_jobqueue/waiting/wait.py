"""`wait_for`: what became of a job, as soon as it has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, overload

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from ..durations import Duration, seconds_of
from ..errors import WaitTimeout
from ..models import Job, JobMixin
from ..results import JobEnd
from .listener import CHECK, Waiter, listener_of

__all__ = ["wait_for"]


@overload
def wait_for(engine: sa.Engine, ids: int, *, timeout: Duration | None, job: type[JobMixin] = Job) -> JobEnd: ...
@overload
def wait_for(
    engine: sa.Engine, ids: Collection[int], *, timeout: Duration | None, job: type[JobMixin] = Job
) -> list[JobEnd]: ...
@overload
def wait_for(
    engine: AsyncEngine, ids: int, *, timeout: Duration | None, job: type[JobMixin] = Job
) -> Coroutine[Any, Any, JobEnd]: ...
@overload
def wait_for(
    engine: AsyncEngine, ids: Collection[int], *, timeout: Duration | None, job: type[JobMixin] = Job
) -> Coroutine[Any, Any, list[JobEnd]]: ...
def wait_for(
    engine: sa.Engine | AsyncEngine, ids: int | Collection[int], *, timeout: Duration | None, job: type[JobMixin] = Job
) -> Any:
    """Wait until a job has ended: completed, failed for good, or cancelled. Of several jobs, until all have.

    `engine`: of an `AsyncEngine` the call is awaited. All waits of a process by one engine share one connection, which is not of the
    engine's pool. `ids`: the id of a job, or several. `timeout`: seconds or a timedelta; None: for as long as it takes.

    Returns a `JobEnd`; for several ids a list of them, in the same order. A job that is not there is an answer, too:
    `JobEnd.is_gone`. So commit the job before you wait for it.

    Raises WaitTimeout, which is a TimeoutError, if a job has not ended by then. The jobs go on. Raises what SQLAlchemy does if the
    database cannot be reached when the wait begins, or refuses to answer; and ResultError if what is stored of a job's end cannot be
    read.
    """
    one = not isinstance(ids, Collection)
    wanted = _checked([ids] if not isinstance(ids, Collection) else ids)
    seconds = None if timeout is None else seconds_of(timeout, what="wait_for(timeout=...)")
    if seconds == 0:
        raise ValueError("wait_for(timeout=...) must be more than 0 seconds; to look without waiting, select the job")
    if isinstance(engine, AsyncEngine):
        return _wait_async(engine, wanted, seconds, job, one=one)
    if not isinstance(engine, sa.Engine):
        raise TypeError(f"wait_for takes an Engine or an AsyncEngine, not {engine!r}")
    if engine.dialect.is_async:
        raise TypeError(f"wait_for takes the AsyncEngine itself, not its sync_engine, and is awaited: {engine!r}")
    return _wait(engine, wanted, seconds, job, one=one)


def _checked(ids: Collection[Any]) -> list[int]:
    for job_id in ids:
        if not isinstance(job_id, int) or isinstance(job_id, bool):
            raise TypeError(f"wait_for takes the id of a job, or several, not {job_id!r}: after a flush it is job.id")
        if not -(2**63) <= job_id < 2**63:
            raise ValueError(f"{job_id} cannot be the id of a job: ids have 64 bits")
    return list(ids)


def _wait(engine: sa.Engine, ids: list[int], seconds: float | None, job: type[JobMixin], *, one: bool) -> Any:
    ended = threading.Event()
    waiter = Waiter(ids, ended.set)
    if ids:
        until = None if seconds is None else monotonic() + seconds
        listener = listener_of(engine, job)
        listener.add(waiter, engine)
        try:
            while not ended.wait(CHECK if until is None else max(min(until - monotonic(), CHECK), 0.0)):
                listener.check()
                if until is not None and monotonic() >= until:
                    break
        finally:
            listener.drop(waiter)
    return _answer(waiter, ids, seconds, one=one)


async def _wait_async(
    engine: AsyncEngine, ids: list[int], seconds: float | None, job: type[JobMixin], *, one: bool
) -> Any:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(ended.set)

    waiter = Waiter(ids, wake)
    if ids:
        listener = listener_of(engine.sync_engine, job)
        listener.add(waiter, engine.sync_engine)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ended.wait()
        finally:
            listener.drop(waiter)
    return _answer(waiter, ids, seconds, one=one)


def _answer(waiter: Waiter, ids: list[int], seconds: float | None, *, one: bool) -> Any:
    if waiter.error is not None:
        raise waiter.error
    if left := sorted(waiter.left):
        assert seconds is not None, "without a timeout it waits for all of them"
        raise WaitTimeout(left, seconds, ended=[waiter.ends[job_id] for job_id in ids if job_id in waiter.ends])
    ends = [waiter.ends[job_id] for job_id in ids]
    return ends[0] if one else ends
