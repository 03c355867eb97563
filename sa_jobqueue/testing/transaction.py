"""The transaction of a handler's session in a test: a part of the test's own, behind a savepoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias, TypeVar, overload

import sqlalchemy as sa
from sqlalchemy.exc import IllegalStateChangeError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, scoped_session
from sqlalchemy.util import await_only

from ..errors import SessionUnavailable
from ..models import JobMixin
from ..rules.lifecycle import Change
from ..sql.apply import Answer
from ..sql.store import Store
from ..worker.running.attempt_end import LOST, RunEnding, ToWrite, Written
from ..worker.running.reopening import Sessions
from ..worker.running.transaction import SHARED, HandlerTransaction, refuse

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Relationships that are not loaded when they are asked for.
_NOT_LAZY = ("raise", "raise_on_sql", "noload", "write_only", "dynamic")

SyncSide: TypeAlias = Session | scoped_session[Any]
"""A session whose answer comes at once."""
AsyncSide: TypeAlias = AsyncSession | async_scoped_session[Any]
"""A session whose answer is awaited."""
Side: TypeAlias = SyncSide | AsyncSide


class Listed(Sequence[T_co]):
    """An unchangeable list, the base of the kit's answers."""

    def __init__(self, listed: Sequence[T_co]) -> None:
        self.listed = tuple(listed)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        return self.listed[index]

    def __len__(self) -> int:
        return len(self.listed)


def own_session(session: Side) -> Session | AsyncSession:
    """The session itself, also behind a scoped session. Raises TypeError for what is no session."""
    found: Any = session() if isinstance(session, (scoped_session, async_scoped_session)) else session
    if not isinstance(found, (Session, AsyncSession)):
        raise TypeError(f"a Session or an AsyncSession is expected, not {found!r}")
    return found


def is_async(session: Side) -> bool:
    """Whether its answers are awaited."""
    return isinstance(own_session(session), AsyncSession)


def on(session: Side, work: Callable[[Session], T]) -> T | Coroutine[Any, Any, T]:
    """Do `work`, written for a `Session`, with either kind."""
    __tracebackhide__ = True
    own = own_session(session)
    return own.run_sync(work) if isinstance(own, AsyncSession) else work(own)


def connection_of(session: Session, job: type[JobMixin]) -> sa.Connection:
    """The connection, in the session's transaction, on which its jobs are."""
    return session.connection(bind_arguments={"mapper": job.__mapper__})


def see_again(session: Session, *, at_once: bool) -> None:
    """Let the session's objects show what others have written on its connection. `at_once`: now, because a lazy load of an
    `AsyncSession` would fail; else when they are looked at.
    """
    if not at_once:
        session.expire_all()
        return
    known = [(instance, _loaded_beside(instance)) for instance in session.identity_map.values()]
    session.expire_all()
    for instance, _ in known:
        if session.get(type(instance), sa.inspect(instance).identity, populate_existing=True) is None:
            session.expunge(instance)  # a row that was deleted
    for instance, beside in known:
        if beside and instance in session:
            session.refresh(instance, beside)


def _loaded_beside(instance: Any) -> list[str]:
    """The relationships and deferred columns that are loaded: they are not read with the row."""
    mapper: Mapper[Any] = sa.inspect(instance).mapper
    found = [of.key for of in mapper.relationships if of.lazy not in _NOT_LAZY]
    found += [of.key for of in mapper.column_attrs if of.deferred]
    return [name for name in found if name in vars(instance)]


#: Seconds between two tests whether a task or thread that a handler left behind has its savepoint.
_TEST_EVERY = 0.001


class _JoinedTransaction(HandlerTransaction):
    """Sends what a handler's session asks for to the connections of the test's session.

    All that the handler writes is behind a savepoint on each: it is kept or undone as a whole. Its own commit() and rollback() are
    those of a savepoint within.
    """

    def __init__(self, session: Session, *, test: Session, job: type[JobMixin], store: Store) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.session, self._test, self._job, self._store = session, test, job, store
        self.committing, self.unopened = None, None
        self._closed, self._opening = False, Lock()
        self._savepoints: dict[sa.Connection, sa.NestedTransaction] = {}
        session.join_transaction_mode = "create_savepoint"
        session.get_bind = self._bind  # type: ignore[method-assign]

    def _bind(self, *args: Any, **options: Any) -> sa.Connection:
        if self._closed:
            refuse()
        if args:
            options["mapper"] = args[0]
        if not self._opening.acquire(blocking=False):
            raise SessionUnavailable(SHARED)
        try:
            connection = self._test.connection(bind_arguments=options)
            if connection not in self._savepoints:
                self._savepoints[connection] = connection.begin_nested()
        finally:
            self._opening.release()
        if self._closed:
            refuse()
        return connection

    def complete(self, change: Change) -> RunEnding:
        """Keep what the handler wrote, together with `change`; if the claim is no longer valid, nothing."""
        self.session.flush()
        if self.session.autobegin or self.session.in_transaction():
            self.session.commit()
        if not self._savepoints:
            return ToWrite(change)
        self._closed = True
        answer = self._write(connection_of(self._test, self._job), change)
        if answer is Answer.LOST:
            return LOST
        self._end(keep=True)
        return Written(change.cancelled if answer is Answer.CANCELLED else change)

    def close(self, *, failed: bool = False) -> None:
        """Undo what was not kept, also by a task or thread that the handler left behind."""
        self._closed = True
        try:
            while not self._is_closed():
                if connection_of(self._test, self._job).dialect.is_async:
                    await_only(asyncio.sleep(_TEST_EVERY))
                else:
                    time.sleep(_TEST_EVERY)
        finally:
            self._end(keep=False)

    def _is_closed(self) -> bool:
        """Close the session, unless a task or thread that was left behind is making a savepoint in it."""
        if self._opening.locked():
            return False
        try:
            self.session.close()
        except IllegalStateChangeError:
            return False
        return True

    def _end(self, *, keep: bool) -> None:
        savepoints, self._savepoints = self._savepoints, {}
        for savepoint in reversed(savepoints.values()):
            if savepoint.is_active and keep:
                savepoint.commit()
            elif savepoint.is_active:
                savepoint.rollback()


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSessions(Sessions):
    """Sessions for handlers, made as in production: by the registry's makers, or plain. They join the transaction of a test's session."""

    test: Session
    job: type[JobMixin]

    def _transaction(self, session: Session, engine: Any) -> HandlerTransaction:
        return _JoinedTransaction(session, test=self.test, job=self.job, store=self.store)
