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
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util import greenlet_spawn

from ..durations import backoff
from ..errors import ResultError
from ..log import get_logger
from ..models import JobMixin
from ..results import JobEnd
from ..store import Store, store_of
from .receivers import LoopReceiver, Receiver, ThreadReceiver
from .subscription import Subscription, is_away

__all__ = ["CHECK", "Listener", "Waiter", "listener_of"]

logger = get_logger(__name__)

#: How often threads that wait check whether the server still answers, in seconds.
CHECK = 5.0
#: Seconds between two attempts to connect, at most.
_LONGEST_PAUSE = 2.0
#: Seconds that the end of the process waits for a connection to be closed.
_AT_EXIT = 1.0


class Waiter:
    """One call that waits. The listener's thread calls `wake()` once, when all its jobs have ended or there is an `error`."""

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
        """It cannot be known."""
        self.error = error
        self.wake()


class Listener:
    """Tells the waiters of one engine. Any thread may call `add`, `drop` and `check`.

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
            left = [one for one in self._waiters.get(job_id, ()) if one not in waiters]
            if left:
                self._waiters[job_id] = left
            else:
                self._waiters.pop(job_id, None)

    def check(self) -> None:
        """Cut off a connection whose server has been silent for too long. A new one is made."""
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
        """Serve until no one has waited for a while."""
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
            return self._fail(error, lambda one: not served and not one.was_served)
        return self._fail(error, lambda _: True)

    def _fail(self, error: BaseException, which: Callable[[Waiter], bool], *, ending: bool = False) -> bool:
        """Give the error to the waiters for which this says so. Returns whether others are left. `ending`: the thread ends."""
        with self._lock:
            waiters = {waiter for waiters in self._waiters.values() for waiter in waiters}
            failed = {one for one in waiters if which(one)}
            self._remove(failed)
            if ending:
                self._receiver = self._thread = None
        for one in failed:
            one.fail(error)
        return len(failed) < len(waiters)

    def wanted(self) -> set[int]:
        """The jobs that are awaited."""
        with self._lock:
            return set(self._waiters)

    def ends_here(self) -> bool:
        """Whether to end, because no one waits or the process ends."""
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
        self._fail(unread, lambda one: job_id in one.left)

    def tell(self, found: dict[int, JobEnd | None]) -> None:
        """What a look has found: of each job its end, or None if it has not ended."""
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
    application may ask for one at each call.
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
    return [one for of_pool in list(_listeners.values()) for one in of_pool.values()]


@atexit.register
def _end_all() -> None:
    for one in _all():
        one.end()


_of_the_parent: list[Listener] = []


def _forget_all() -> None:
    """In a forked child: their threads are not there, their locks may be held, and their connections are the parent's."""
    global _listeners, _lock
    _of_the_parent.extend(_all())  # so that nothing of theirs is closed
    _listeners, _lock = weakref.WeakKeyDictionary(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
