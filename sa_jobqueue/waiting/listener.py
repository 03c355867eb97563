"""The listener of an engine: one thread and one connection for all that a process awaits of it.

The connection comes from a pool of its own, made as the engine's is. The engine's pool may be used up by the very threads that
wait. For an `AsyncEngine` the thread runs an event loop of its own, so the connection belongs to none of the application's
loops, and outlives each of them. `Listener` is the same code for both; only its receiver differs.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, TypeAlias, overload

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from ..arguments.ends import JobEnd
from ..errors import ResultError, WaitTimeout
from ..models import Job, JobMixin
from ..rules.retry import Duration, backoff, seconds_of
from ..sql.store import Store, store_of
from ..util.log import get_logger
from .receivers import LoopReceiver, Receiver, ThreadReceiver
from .subscription import Subscription, is_away

logger = get_logger(__name__)

#: How often threads that wait check whether the server still answers, in seconds.
CHECK = 5.0
#: Seconds between two attempts to connect, at most.
_LONGEST_PAUSE = 2.0
#: Seconds that the end of the process waits for a connection to be closed.
_AT_EXIT = 1.0


class Waiter:
    """A call that waits. The listener's thread calls `wake()` once, when all its jobs have ended or there is an `error`."""

    def __init__(self, ids: Iterable[int], wake: Callable[[], object]) -> None:
        self.left = set(ids)
        """Jobs that have not ended, as far as is known. Only the listener changes it."""
        self.ends: dict[int, JobEnd] = {}
        self.error: BaseException | None = None
        self.was_served = False
        """Whether its jobs were looked at once. After that a lost connection is no error for it."""
        self.wake = wake

    def ended(self, end: JobEnd) -> None:
        """One of its jobs has ended."""
        self.ends[end.id] = end
        self.left.discard(end.id)
        if not self.left:
            self.wake()

    def fail(self, error: BaseException) -> None:
        """The ends cannot be known, because of `error`."""
        self.error = error
        self.wake()


class Listener:
    """Tells an engine's waiters. Any thread may call `add`, `drop` and `check`.

    Only its thread keeps an engine from being collected.
    """

    def __init__(self, store: Store, pool: sa.Pool) -> None:
        self._store = store
        self._pool = weakref.ref(pool)  # it refers to the engine
        self._lock = threading.Lock()  # of all below
        self._waiters: dict[int, list[Waiter]] = {}
        """By the job."""
        self._receiver: Receiver | None = None
        """Of the thread; None while there is none."""
        self._thread: threading.Thread | None = None
        self._is_ending = False
        """Whether the process ends."""

    def add(self, waiter: Waiter, engine: sa.Engine) -> None:
        """Begin to wait."""
        with self._lock:
            if self._receiver is None:
                self._receiver, self._thread = self._start(engine)
            for job_id in waiter.left:
                self._waiters.setdefault(job_id, []).append(waiter)
            receiver = self._receiver
        receiver.wake()

    def drop(self, waiter: Waiter) -> None:
        """Wait no more."""
        with self._lock:
            self._remove({waiter})
            receiver = self._receiver
        if receiver is not None and waiter.left:
            receiver.wake()

    def _remove(self, waiters: set[Waiter]) -> None:
        for job_id in {job_id for waiter in waiters for job_id in list(waiter.left)}:
            left = [waiter for waiter in self._waiters.get(job_id, ()) if waiter not in waiters]
            if left:
                self._waiters[job_id] = left
            else:
                self._waiters.pop(job_id, None)

    def check(self) -> None:
        """Cut off a connection whose server has been silent for too long. A new connection is made."""
        if (receiver := self._receiver) is not None:
            receiver.cut_off()

    def end(self) -> None:
        """The process ends: close the connection."""
        with self._lock:
            self._is_ending = True
            receiver, thread = self._receiver, self._thread
        if receiver is not None and thread is not None:
            receiver.wake()
            thread.join(_AT_EXIT)

    def _start(self, engine: sa.Engine) -> tuple[Receiver, threading.Thread]:
        receiver: Receiver
        if engine.dialect.is_async:
            loop = asyncio.SelectorEventLoop()  # all drivers work with it, on all systems
            receiver = LoopReceiver(loop)
            run = partial(self._run_loop, loop, engine, receiver)
        else:
            receiver = ThreadReceiver()
            run = partial(self._run, engine, receiver)
        thread = threading.Thread(target=run, name="sa-jobqueue waiting", daemon=True)
        thread.start()
        return receiver, thread

    # ---- on its own thread

    def _run_loop(self, loop: asyncio.AbstractEventLoop, engine: sa.Engine, receiver: Receiver) -> None:
        try:
            loop.run_until_complete(greenlet_spawn(self._run, engine, receiver))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _run(self, engine: sa.Engine, receiver: Receiver) -> None:
        """Serve until nobody has waited for a while."""
        failures = 0
        try:
            while True:
                subscription = Subscription(self, engine, self._store, receiver)
                try:
                    subscription.serve()
                    return
                except (SQLAlchemyError, OSError) as error:  # asyncpg's are OSErrors where it cannot connect
                    failures = 1 if subscription.has_served else failures + 1
                    left = self._went_wrong(error, served=subscription.has_served)
                    if left and (failures == 1 or failures % 20 == 0):
                        logger.warning(
                            "the connection that hears of the ends of jobs was lost (%s); making a new one",
                            _in_a_line(error),
                        )
                    receiver.sleep(backoff(failures, first=0.05, most=_LONGEST_PAUSE))
                    if self.ends_here():
                        return
        except BaseException as error:
            self._fail(error, lambda _: True, ending=True)
            if not isinstance(error, Exception):
                raise
            logger.exception("the listener for ends of jobs has ended")
        finally:
            receiver.close()

    def _went_wrong(self, error: Exception, *, served: bool) -> bool:
        """Those who can wait on while the connection is made again do so, and the others get the error. Returns whether some wait on."""
        if is_away(error):
            return self._fail(error, lambda waiter: not served and not waiter.was_served)
        return self._fail(error, lambda _: True)

    def _fail(self, error: BaseException, which: Callable[[Waiter], bool], *, ending: bool = False) -> bool:
        """Give the error to the waiters that `which` selects. Returns whether others are left. `ending`: the thread ends."""
        with self._lock:
            waiters = {waiter for waiters in self._waiters.values() for waiter in waiters}
            failed = {failing for failing in waiters if which(failing)}
            self._remove(failed)
            if ending:
                self._receiver = self._thread = None
        for failing in failed:
            failing.fail(error)
        return len(failed) < len(waiters)

    def wanted(self) -> set[int]:
        """The jobs that are awaited."""
        with self._lock:
            return set(self._waiters)

    def ends_here(self) -> bool:
        """Whether to end, because nobody waits or the process ends."""
        with self._lock:
            if self._waiters and not self._is_ending:
                return False
            self._receiver = self._thread = None
            return True

    @property
    def is_ending(self) -> bool:
        return self._is_ending

    def is_disposed_of(self, engine: sa.Engine) -> bool:
        return self._pool() is not engine.pool  # a disposal gives the engine another pool

    def cannot_tell(self, job_id: int, error: Exception) -> None:
        """A job has ended, and its row cannot be read."""
        unread = ResultError(
            f"job {job_id} has ended, but its result or its last error cannot be read: {_in_a_line(error)}"
        )
        unread.__cause__ = error
        self._fail(unread, lambda waiter: job_id in waiter.left)

    def tell(self, found: dict[int, JobEnd | None]) -> None:
        """Tell the waiters what was found: the end of each job, or None if it has not ended."""
        with self._lock:
            for job_id in found:
                for waiter in self._waiters.get(job_id, ()):
                    waiter.was_served = True
            ended = [(waiter, end) for job_id, end in found.items() if end for waiter in self._waiters.pop(job_id, ())]
        for waiter, end in ended:
            waiter.ended(end)


def _in_a_line(error: Exception) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())


_Key: TypeAlias = tuple[type[JobMixin], frozenset[tuple[str | None, str | None]]]
"""The class of the jobs, and the engine's `schema_translate_map`."""

_listeners: weakref.WeakKeyDictionary[sa.Pool, dict[_Key, Listener]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def listener_of(engine: sa.Engine, job: type[JobMixin]) -> Listener:
    """The one of this engine in this process; of an AsyncEngine give its `sync_engine`.

    What `engine.execution_options()` returns has the engine's pool, and so its listener, unless its tables are elsewhere: an
    application may call it again and again.
    """
    translate = engine.get_execution_options().get("schema_translate_map") or {}
    key: _Key = (job, frozenset(translate.items()))
    pool = engine.pool
    with _lock:
        of_pool = _listeners.setdefault(pool, {})
        if key not in of_pool:
            of_pool[key] = Listener(store_of(job), pool)
        return of_pool[key]


def _all() -> list[Listener]:
    return [listener for of_pool in list(_listeners.values()) for listener in of_pool.values()]


@atexit.register
def _end_all() -> None:
    for listener in _all():
        listener.end()


_of_the_parent: list[Listener] = []


def _forget_all() -> None:
    """In a forked child: their threads are not there, their locks may be held, and their connections are the parent's."""
    global _listeners, _lock
    _of_the_parent.extend(_all())  # so that nothing of theirs is closed
    _listeners, _lock = weakref.WeakKeyDictionary(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)

# ---- `wait_for`: the end of a job, as soon as it has ended.


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

    `engine`: of an `AsyncEngine` the call is awaited. All waits of a process by the same engine share a connection, which is not of the
    engine's pool. `ids`: the id of a job, or several. `timeout`: seconds or a timedelta; None: for as long as it takes.

    Returns a `JobEnd`; for several ids a list of them, in the same order. A job that is not there is an answer, too:
    `JobEnd.is_gone`. So commit the job before you wait for it.

    Raises WaitTimeout, which is a TimeoutError, if a job has not ended by then. The jobs go on. Raises what SQLAlchemy does if the
    database cannot be reached when the wait begins, or refuses to answer; and ResultError if what is stored of a job's end cannot be
    read.
    """
    is_single = not isinstance(ids, Collection)
    wanted = _checked([ids] if not isinstance(ids, Collection) else ids)
    seconds = None if timeout is None else seconds_of(timeout, what="wait_for(timeout=...)")
    if seconds == 0:
        raise ValueError("wait_for(timeout=...) must be more than 0 seconds; to look without waiting, select the job")
    if isinstance(engine, AsyncEngine):
        return _wait_async(engine, wanted, seconds, job, is_single=is_single)
    if not isinstance(engine, sa.Engine):
        raise TypeError(f"wait_for takes an Engine or an AsyncEngine, not {engine!r}")
    if engine.dialect.is_async:
        raise TypeError(f"wait_for takes the AsyncEngine itself, not its sync_engine, and is awaited: {engine!r}")
    return _wait(engine, wanted, seconds, job, is_single=is_single)


def _checked(ids: Collection[Any]) -> list[int]:
    for job_id in ids:
        if not isinstance(job_id, int) or isinstance(job_id, bool):
            raise TypeError(f"wait_for takes the id of a job, or several, not {job_id!r}: after a flush it is job.id")
        if not -(2**63) <= job_id < 2**63:
            raise ValueError(f"{job_id} cannot be the id of a job: ids have 64 bits")
    return list(ids)


def _wait(engine: sa.Engine, ids: list[int], seconds: float | None, job: type[JobMixin], *, is_single: bool) -> Any:
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
    return _answer(waiter, ids, seconds, is_single=is_single)


async def _wait_async(
    engine: AsyncEngine, ids: list[int], seconds: float | None, job: type[JobMixin], *, is_single: bool
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
    return _answer(waiter, ids, seconds, is_single=is_single)


def _answer(waiter: Waiter, ids: list[int], seconds: float | None, *, is_single: bool) -> Any:
    if waiter.error is not None:
        raise waiter.error
    if left := sorted(waiter.left):
        assert seconds is not None, "without a timeout it waits for all of them"
        raise WaitTimeout(left, seconds, ended=[waiter.ends[job_id] for job_id in ids if job_id in waiter.ends])
    ends = [waiter.ends[job_id] for job_id in ids]
    return ends[0] if is_single else ends
