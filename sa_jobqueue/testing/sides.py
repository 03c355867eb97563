"""One way of writing for both kinds of session: a `Session` answers at once, an `AsyncSession` is awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, scoped_session

from ..models import JobMixin

__all__ = ["AsyncSide", "Side", "SyncSide", "connection_of", "is_async", "on", "own_session", "see_again"]

T = TypeVar("T")

#: Relationships that are not loaded when they are asked for.
_NOT_LAZY = ("raise", "raise_on_sql", "noload", "write_only", "dynamic")

SyncSide: TypeAlias = Session | scoped_session[Any]
"""A session whose answer comes at once."""
AsyncSide: TypeAlias = AsyncSession | async_scoped_session[Any]
"""A session whose answer is awaited."""
Side: TypeAlias = SyncSide | AsyncSide


def own_session(session: Side) -> Session | AsyncSession:
    """The session behind a scoped one. Raises TypeError for what is no session."""
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
    known = [(one, _loaded_beside(one)) for one in session.identity_map.values()]
    session.expire_all()
    for one, _ in known:
        if session.get(type(one), sa.inspect(one).identity, populate_existing=True) is None:
            session.expunge(one)  # a row that was deleted
    for one, beside in known:
        if beside and one in session:
            session.refresh(one, beside)


def _loaded_beside(one: Any) -> list[str]:
    """The relationships and deferred columns that are loaded: they are not read with the row."""
    mapper: Mapper[Any] = sa.inspect(one).mapper
    found = [of.key for of in mapper.relationships if of.lazy not in _NOT_LAZY]
    found += [of.key for of in mapper.column_attrs if of.deferred]
    return [name for name in found if name in vars(one)]
