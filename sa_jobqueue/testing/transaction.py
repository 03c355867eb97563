"""The sessions of a test, of both kinds, and the objects in them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar, overload

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, scoped_session

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
