"""A listener's work with a connection: it reads jobs, asks for notifications about their ends, and sleeps until a notification.

It reads a job when a call begins to wait for it, enters it in the table `awaited`, and reads it once more. From
then on it sleeps until a NOTIFY says that a job has ended. A statement that ends a job may have read `awaited` just before, and commit just
afterwards. So a job is also polled without a notification, soon and then ever more rarely.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ..arguments.ends import JobEnd
from ..sql.store import Store
from ..util.log import get_logger
from .receivers import ConnectionLost, Receiver

logger = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: When a job is polled without a notification: seconds until the first poll, the growth of the pause, and its maximum.
_FIRST_POLL, _GROWTH, _LAST_POLL = 0.02, 3.0, 5.0
#: Growth and maximum of the pause where no notifications come.
_GROWTH_WITHOUT_NOTIFICATIONS, _LAST_POLL_WITHOUT_NOTIFICATIONS = 1.5, 1.0
#: Least seconds between two polls without a notification, however many jobs are awaited.
_BETWEEN_POLLS = 0.01
#: Seconds for which an entry in `awaited` is valid. It is renewed after half of them.
_HOLD = 60.0
#: Seconds for which the connection stays open after the last wait, in case there is another.
_LINGER = 5.0
#: Seconds between two checks whether the engine was disposed of.
_LINGER_STEP = 0.25
#: Seconds in which the server has to answer.
_SILENCE = 10.0
#: The SQLSTATEs for a lack of rights, and for a write in a read-only transaction.
_MAY_NOT = frozenset({"42501", "25006"})
#: The class of the SQLSTATEs for a wrong statement or role, for any rows.
_WRONG = "42"


class Waiters(Protocol):
    """The waiters for whom a subscription reads jobs."""

    @property
    def is_ending(self) -> bool:
        """Whether the process ends."""
        ...

    def is_disposed_of(self, engine: sa.Engine) -> bool:
        """Whether the engine was disposed of since they began to wait: then no connection is expected to stay open."""
        ...

    def wanted(self) -> set[int]:
        """The jobs that are awaited."""
        ...

    def ends_here(self) -> bool:
        """Whether to end, because nobody waits or the process ends."""
        ...

    def tell(self, found: dict[int, JobEnd | None]) -> None:
        """Tell the waiters what was found: the end of each job, or None if it has not ended."""

    def cannot_tell(self, job_id: int, error: Exception) -> None:
        """A job has ended, and its row cannot be read."""


class _Poll:
    """When to poll a job again without a notification."""

    __slots__ = ("at", "pause")

    def __init__(self) -> None:
        self.at = self.pause = 0.0

    def later(self, growth: float, most: float) -> None:
        self.pause = min(self.pause * growth or _FIRST_POLL, most)
        self.at = monotonic() + self.pause


class Subscription:
    """A listener's work with a connection."""

    def __init__(self, waiters: Waiters, engine: sa.Engine, store: Store, receiver: Receiver) -> None:
        self._waiters, self._engine, self._store, self._receiver = waiters, engine, store, receiver
        self.has_served = False
        """Whether the connection has been of use."""
        self._listens = False
        self._waiter = uuid.uuid4()
        self._polls: dict[int, _Poll] = {}
        self._polled_at = 0.0
        """When it last polled without a notification."""
        self._entered: set[int] = set()
        """The jobs that the table `awaited` has from it."""
        self._entered_until = 0.0
        self._archive: bool = False
        """Whether there is an archive to read. It is tested when a job is not there, and from time to time."""
        self._archive_asked = -_HOLD

    def serve(self) -> None:
        """Connect, and return when nobody has waited for a while."""
        pool, dialect = self._engine.pool.recreate(), self._engine.dialect
        try:
            connection = sa.Connection(self._engine, pool.connect())
        except dialect.loaded_dbapi.Error as error:
            raise DBAPIError.instance(None, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
        try:
            self._connection = connection
            with self._receiver.within(_SILENCE, connection):
                self._schema = self._store.schema_on(connection)
                self._listens = self._listen()
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

    def _listen(self) -> bool:
        try:
            with self._connection.begin():
                channel = self._store.channel_of_ends(self._connection, schema=self._schema)
                return self._receiver.listen(self._connection, channel)
        except Exception as error:  # asyncpg's own, too
            if _sqlstate(error) not in _MAY_NOT:
                raise
            self._warn_that_it_polls(error)  # on a standby, for example
            return False

    def _loop(self) -> None:
        idle_since: float | None = None
        ended: set[int] = set()
        while True:
            wanted = self._waiters.wanted()
            with self._receiver.within(_SILENCE, self._connection):
                self._step(wanted, ended)
            self.has_served = True
            if wanted and not self._waiters.is_ending:
                idle_since = None
            else:
                idle_since = idle_since or monotonic()
                is_over = monotonic() >= idle_since + _LINGER or self._waiters.is_disposed_of(self._engine)
                if (is_over or self._waiters.is_ending) and self._waiters.ends_here():
                    return
            ended = self._receiver.sleep(max(self._next_at(idle_since) - monotonic(), 0.0))

    def _next_at(self, idle_since: float | None) -> float:
        if self._entered - self._polls.keys():
            return 0.0  # some have ended just now, and their entries are to be removed
        if not self._polls:
            return 0.0 if idle_since is None else min(idle_since + _LINGER, monotonic() + _LINGER_STEP)
        next_poll = max(min(poll.at for poll in self._polls.values()), self._polled_at + _BETWEEN_POLLS)
        return min(next_poll, self._entered_until - _HOLD / 2) if self._entered else next_poll

    def _step(self, wanted: set[int], ended: set[int]) -> None:
        """Enter what is awaited, and read the jobs that may have ended."""
        for job_id in self._polls.keys() - wanted:
            del self._polls[job_id]
        if over := self._entered - wanted:
            self._write(self._store.end_waits, sorted(over), waiter=self._waiter)
            self._entered -= over
        if new := wanted - self._polls.keys():
            self._poll(new)
            self._enter(new)
        notified = ended & self._polls.keys()
        due = {job_id for job_id, poll in self._polls.items() if poll.at <= monotonic()}
        if notified or due:
            self._poll(notified | due)
        if due:
            self._polled_at = monotonic()
        if self._entered and monotonic() >= self._entered_until - _HOLD / 2:
            self._renew()

    def _poll(self, ids: set[int]) -> None:
        found = self._read(sorted(ids))
        times = (_GROWTH_WITHOUT_NOTIFICATIONS, _LAST_POLL_WITHOUT_NOTIFICATIONS)
        if self._listens:
            times = (_GROWTH, _LAST_POLL)
        for job_id, end in found.items():
            if end is None:
                self._polls.setdefault(job_id, _Poll()).later(*times)
            else:
                self._polls.pop(job_id, None)
        self._waiters.tell(found)

    def _read(self, ids: list[int]) -> dict[int, JobEnd | None]:
        """The ends of these jobs. A row that cannot be read is an error only for those who wait for it."""
        try:
            found = self._ask(self._store.ends, ids)
            gone = [job_id for job_id, end in found.items() if end is not None and end.is_gone]
            if gone and self._has_archive():
                found |= self._ask(self._store.archived_ends, gone)
            return found
        except Exception as error:  # of what reads JSON, too
            if is_away(error) or _sqlstate(error)[:2] == _WRONG:
                raise
            if len(ids) > 1:
                half = len(ids) // 2
                return self._read(ids[:half]) | self._read(ids[half:])
            self._polls.pop(ids[0], None)
            self._waiters.cannot_tell(ids[0], error)
            return {}

    def _has_archive(self) -> bool:
        if not self._archive and monotonic() >= self._archive_asked + _HOLD:
            self._archive_asked = monotonic()
            self._archive = bool(self._ask(self._store.archive_parts))
        return self._archive

    def _enter(self, ids: set[int]) -> None:
        """Enter the jobs that have not ended in `awaited`, then read them once more."""
        ids = ids & self._polls.keys()
        if not ids or not self._listens:
            return
        if not self._entered:
            self._renew()
        if self._enter_now(ids):
            self._entered |= ids
            self._polls |= {job_id: _Poll() for job_id in ids}  # from here on it is told, or finds out soon
            self._poll(ids)

    def _renew(self) -> None:
        self._write(self._store.drop_expired_waits)
        self._entered_until = monotonic() + _HOLD
        if self._entered:
            self._enter_now(self._entered)

    def _enter_now(self, ids: set[int]) -> bool:
        wait_for = self._store.wait_for
        return self._write(wait_for, sorted(ids), waiter=self._waiter, seconds=_HOLD, schema=self._schema)

    def _write(
        self, what: Callable[Concatenate[sa.Connection, P], None], *arguments: P.args, **options: P.kwargs
    ) -> bool:
        """Change the table `awaited`. False: this connection may not, and polls from now on."""
        if not self._listens:
            return False
        try:
            self._ask(what, *arguments, **options)
        except DBAPIError as error:
            if _sqlstate(error) not in _MAY_NOT:
                raise
            self._warn_that_it_polls(error)
            self._listens = False
            self._entered = set()
            return False
        return True

    def _warn_that_it_polls(self, error: Exception) -> None:
        reason = getattr(error, "orig", None) or error
        logger.warning("the ends of jobs are not told, because this connection may not say that it waits (%s)", reason)

    def _ask(self, question: Callable[Concatenate[sa.Connection, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        with self._connection.begin():
            return question(self._connection, *arguments, **options)


def _sqlstate(error: Exception) -> str:
    """Empty if it has none."""
    raised = getattr(error, "orig", None) or error
    return str(getattr(raised, "sqlstate", None) or getattr(raised, "pgcode", None) or "")  # pgcode: psycopg2's


def is_away(error: Exception) -> bool:
    """Whether the database cannot be reached or cannot answer just now, rather than that it refuses."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, (ConnectionLost, OSError))
    state = _sqlstate(error)
    return error.connection_invalidated or not state or state[:2] in {"08", "40", "53", "57"}
