"""The listener of an engine: one thread and one connection for all that a process awaits of it.

It looks at a job when a call begins to wait for it, says in the table `awaited` that its end is to be told, and looks once more. From
then on it sleeps until a NOTIFY says that a job has ended. What ends a job may have looked at `awaited` just before, and commit just
afterwards. So the listener also looks by itself, soon and then ever more rarely.

The connection comes from a pool of its own, made as the engine's is. The engine's pool may be used up by the very threads that
wait. For an `AsyncEngine` the thread runs an event loop of its own, so the connection belongs to none of the application's
loops, and outlives each of them. `Listener` is the same code for both; only its receiver differs.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.util import greenlet_spawn

from ..errors import ResultError
from ..log import get_logger
from ..models import Job
from ..results import JobEnd
from ..store import Store, store_of
from ..worker.process.backoff import backoff
from .receivers import ConnectionLost, LoopReceiver, Receiver, ThreadReceiver

__all__ = ["CHECK", "Listener", "Waiter", "listener_of"]

logger = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: When a job is looked at without a notification: after how many seconds first, how many times as long each next time, and at most.
_FIRST_LOOK, _GROWTH, _LAST_LOOK = 0.02, 3.0, 5.0
#: The same where nothing is told.
_GROWTH_OF_POLLING, _LAST_LOOK_OF_POLLING = 1.5, 1.0
#: Seconds between two looks without a notification, at least, however many jobs are awaited.
_BETWEEN_LOOKS = 0.01
#: Seconds for which a job is said to be awaited. It is said again after half of them.
_HOLD = 60.0
#: Seconds for which the connection stays open after the last wait, in case there is another.
_LINGER = 5.0
#: Seconds after which it looks whether the engine was disposed of meanwhile.
_LINGER_STEP = 0.25
#: Seconds in which the server has to answer, and how often threads that wait check that.
_SILENCE = 10.0
CHECK = 5.0
#: Seconds between two attempts to connect, at most.
_LONGEST_PAUSE = 2.0
#: Seconds that the end of the process waits for a connection to be closed.
_AT_EXIT = 1.0
#: The SQLSTATEs of a statement for which the role lacks the right, and of one that would write in a read-only transaction.
_MAY_NOT = frozenset({"42501", "25006"})
#: The class of the SQLSTATEs that say that a statement, or the role, is wrong, whatever the rows are.
_WRONG = "42"


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
    """Tells the waiters of one engine. Any thread may call `add`, `drop` and `check`."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = weakref.ref(engine)  # only the thread keeps it from being collected
        self._store = store
        self._lock = threading.Lock()  # of all below
        self._waiters: dict[int, list[Waiter]] = {}
        """By the job."""
        self._receiver: Receiver | None = None
        """Of the thread; None while there is none."""
        self._thread: threading.Thread | None = None
        self._is_ending = False
        """Whether the process ends."""

    def add(self, waiter: Waiter) -> None:
        """Begin to wait."""
        with self._lock:
            if self._receiver is None:
                self._receiver, self._thread = self._start()
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

    def _start(self) -> tuple[Receiver, threading.Thread]:
        engine = self._engine()
        assert engine is not None, "who waits has it"
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

    def _run_loop(self, loop: asyncio.AbstractEventLoop, engine: Engine, receiver: Receiver) -> None:
        try:
            loop.run_until_complete(greenlet_spawn(self._run, engine, receiver))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _run(self, engine: Engine, receiver: Receiver) -> None:
        """Serve until no one has waited for a while."""
        failures = 0
        try:
            while True:
                subscription = _Subscription(self, engine, self._store, receiver)
                try:
                    subscription.serve()
                    return
                except (SQLAlchemyError, OSError) as error:  # asyncpg's are OSErrors where it cannot connect
                    failures = 1 if subscription.has_served else failures + 1
                    left = self._went_wrong(error, served=subscription.has_served)
                    if left and (failures == 1 or failures % 20 == 0):
                        reason = " ".join(str(getattr(error, "orig", None) or error).split())
                        logger.warning(
                            "the connection that hears of the ends of jobs was lost (%s); making a new one", reason
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
        if _is_away(error):
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

    def cannot_tell(self, job_id: int, error: Exception) -> None:
        """A job has ended, and its row cannot be read."""
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        unread = ResultError(f"job {job_id} has ended, but its result or its last error cannot be read: {reason}")
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


class _Look:
    """When to look at a job again, without a notification."""

    __slots__ = ("at", "pause")

    def __init__(self) -> None:
        self.at = self.pause = 0.0

    def later(self, growth: float, most: float) -> None:
        self.pause = min(self.pause * growth or _FIRST_LOOK, most)
        self.at = monotonic() + self.pause


class _Subscription:
    """What a listener does with one connection."""

    def __init__(self, listener: Listener, engine: Engine, store: Store, receiver: Receiver) -> None:
        self._listener, self._engine, self._store, self._receiver = listener, engine, store, receiver
        self.has_served = False
        """Whether the connection has been of use."""
        self._listens = False
        self._waiter = uuid.uuid4()
        self._looks: dict[int, _Look] = {}
        self._looked_at = 0.0
        """When it last looked without a notification."""
        self._said: set[int] = set()
        """The jobs that the table `awaited` has from it."""
        self._said_until = 0.0

    def serve(self) -> None:
        """Connect, and return when no one has waited for a while."""
        pool, dialect = self._engine.pool.recreate(), self._engine.dialect
        try:
            connection = Connection(self._engine, pool.connect())
        except dialect.loaded_dbapi.Error as error:
            raise DBAPIError.instance(None, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
        try:
            self._connection = connection
            with self._receiver.within(_SILENCE, connection):
                self._schema = self._store.schema_on(connection)
                with connection.begin():
                    channel = self._store.channel_of_ends(connection, schema=self._schema)
                    self._listens = self._receiver.listen(connection, channel)
                if self._listens:  # behind a pooler what is prepared lasts no longer than its transaction
                    connection.execution_options(isolation_level="AUTOCOMMIT")
            self._loop()
        finally:
            with suppress(Exception):
                self._receiver.forget()
            with suppress(Exception):
                connection.invalidate()  # closes it, also where the server is silent
            with suppress(Exception):
                connection.close()
            with suppress(Exception):
                pool.dispose()

    def _loop(self) -> None:
        idle_since: float | None = None
        # The engine gets another pool when it is disposed of. Then no connection is expected to stay open.
        pool = self._engine.pool
        ended: set[int] = set()
        while True:
            wanted = self._listener.wanted()
            with self._receiver.within(_SILENCE, self._connection):
                self._step(wanted, ended)
            self.has_served = True
            if wanted and not self._listener.is_ending:
                idle_since = None
            else:
                idle_since = idle_since or monotonic()
                is_over = monotonic() >= idle_since + _LINGER or pool is not self._engine.pool
                if (is_over or self._listener.is_ending) and self._listener.ends_here():
                    return
            ended = self._receiver.sleep(max(self._next_at(idle_since) - monotonic(), 0.0))

    def _next_at(self, idle_since: float | None) -> float:
        if self._said - self._looks.keys():
            return 0.0  # some have ended just now, of which the table is to be told
        if not self._looks:
            return 0.0 if idle_since is None else min(idle_since + _LINGER, monotonic() + _LINGER_STEP)
        look = max(min(look.at for look in self._looks.values()), self._looked_at + _BETWEEN_LOOKS)
        return min(look, self._said_until - _HOLD / 2) if self._said else look

    def _step(self, wanted: set[int], ended: set[int]) -> None:
        """Say what is awaited, and look at what may have ended."""
        for job_id in self._looks.keys() - wanted:
            del self._looks[job_id]
        if over := self._said - wanted:
            self._write(self._store.end_waits, sorted(over), waiter=self._waiter)
            self._said -= over
        if new := wanted - self._looks.keys():
            self._look(new)
            self._say(new)
        told = ended & self._looks.keys()
        due = {job_id for job_id, look in self._looks.items() if look.at <= monotonic()}
        if told or due:
            self._look(told | due)
        if due:
            self._looked_at = monotonic()
        if self._said and monotonic() >= self._said_until - _HOLD / 2:
            self._say_again()

    def _look(self, ids: set[int]) -> None:
        found = self._read(sorted(ids))
        times = (_GROWTH, _LAST_LOOK) if self._listens else (_GROWTH_OF_POLLING, _LAST_LOOK_OF_POLLING)
        for job_id, end in found.items():
            if end is None:
                self._looks.setdefault(job_id, _Look()).later(*times)
            else:
                self._looks.pop(job_id, None)
        self._listener.tell(found)

    def _read(self, ids: list[int]) -> dict[int, JobEnd | None]:
        """What became of these jobs. One whose row cannot be read is an error for those who wait for it, and for no others."""
        try:
            return self._ask(self._store.ends, ids)
        except Exception as error:  # of what reads JSON, too
            if _is_away(error) or _sqlstate(error)[:2] == _WRONG:
                raise
            if len(ids) > 1:
                half = len(ids) // 2
                return self._read(ids[:half]) | self._read(ids[half:])
            self._looks.pop(ids[0], None)
            self._listener.cannot_tell(ids[0], error)
            return {}

    def _say(self, ids: set[int]) -> None:
        """Have the ends of these told, of those that have not ended; then look at them once more."""
        ids = ids & self._looks.keys()
        if not ids or not self._listens:
            return
        if not self._said:
            self._say_again()
        if self._say_so(ids):
            self._said |= ids
            self._look(ids)

    def _say_again(self) -> None:
        self._write(self._store.drop_expired_waits)
        self._said_until = monotonic() + _HOLD
        if self._said:
            self._say_so(self._said)

    def _say_so(self, ids: set[int]) -> bool:
        wait_for = self._store.wait_for
        return self._write(wait_for, sorted(ids), waiter=self._waiter, seconds=_HOLD, schema=self._schema)

    def _write(self, what: Callable[Concatenate[Connection, P], None], *arguments: P.args, **options: P.kwargs) -> bool:
        """Change the table `awaited`. False: this connection may not; from now on it looks by itself."""
        if not self._listens:
            return False
        try:
            self._ask(what, *arguments, **options)
        except DBAPIError as error:
            if _sqlstate(error) not in _MAY_NOT:
                raise
            logger.warning(
                "the ends of jobs are not told, because this role may not say that it waits (%s)", error.orig
            )
            self._listens = False
            self._said = set()
            return False
        return True

    def _ask(self, question: Callable[Concatenate[Connection, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        with self._connection.begin():
            return question(self._connection, *arguments, **options)


def _sqlstate(error: Exception) -> str:
    """Empty if it has none."""
    raised = getattr(error, "orig", None)
    return str(getattr(raised, "sqlstate", None) or getattr(raised, "pgcode", None) or "")  # pgcode: psycopg2's


def _is_away(error: Exception) -> bool:
    """Whether the database cannot be reached just now, rather than that it refuses."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, (ConnectionLost, OSError))
    state = _sqlstate(error)
    return error.connection_invalidated or not state or state[:2] in {"08", "53", "57"}


_listeners: weakref.WeakKeyDictionary[Engine, dict[type[Job], Listener]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def listener_of(engine: Engine, job: type[Job]) -> Listener:
    """The one of this engine in this process; of an AsyncEngine give its `sync_engine`."""
    with _lock:
        of_engine = _listeners.setdefault(engine, {})
        if job not in of_engine:
            of_engine[job] = Listener(engine, store_of(job))
        return of_engine[job]


def _all() -> list[Listener]:
    return [one for of_engine in list(_listeners.values()) for one in of_engine.values()]


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
