"""Where handlers' sessions come from: the worker's engines, or the application's own sessionmakers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from ...errors import SessionUnavailable
from ...makers import AsyncSessionMaker, SessionMaker
from ...store import Input, Store, default_store
from .transaction import HandlerTransaction

__all__ = ["Sessions"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sessions:
    """Makes the session of a handler, together with the transaction that it joins."""

    engine: sa.Engine | None = None
    async_engine: AsyncEngine | None = None
    maker: SessionMaker | None = None
    async_maker: AsyncSessionMaker | None = None
    translate: Mapping[str | None, str | None] | None = None
    idle_timeout: float | None = None
    store: Store = default_store

    def open(self) -> tuple[Session, HandlerTransaction]:
        """A session for a `def` handler, and its transaction."""
        session = Session(self.engine) if self.maker is None else _checked(self.maker(), Session)
        return session, self._transaction(session, self.engine)

    def open_async(self) -> tuple[AsyncSession, HandlerTransaction]:
        """The same for an `async def` handler; does no I/O."""
        if self.async_maker is None:
            session = AsyncSession(expire_on_commit=False)
        else:
            session = _checked(self.async_maker(), AsyncSession)
        engine = None if self.async_engine is None else self.async_engine.sync_engine
        return session, self._transaction(session.sync_session, engine)

    def read_inputs(self, id: int, after: int, limit: int) -> list[Input]:
        """A page of what a member of a workflow takes of others, read in a transaction of its own."""
        if self.engine is None:
            raise SessionUnavailable("the results of other jobs are read by an Engine, and the worker has none")
        with self.engine.connect() as connection:
            translated = connection.execution_options(schema_translate_map=dict(self.translate or {}))
            return self.store.page_of_inputs(translated, id, after=after, limit=limit)

    def _transaction(self, session: Session, engine: sa.Engine | None) -> HandlerTransaction:
        return HandlerTransaction(
            session,
            engine=engine,
            database=None if self.engine is None else self.engine.url,
            translate=self.translate,
            idle=self.idle_timeout,
            store=self.store,
        )


def _checked(made: T, wanted: type[T]) -> T:
    """What the application's sessionmaker made. A session of the other kind would keep nothing, and report no error."""
    if not isinstance(made, wanted):
        raise SessionUnavailable(f"the application's sessionmaker made {made!r}; a {wanted.__name__} is expected")
    return made
