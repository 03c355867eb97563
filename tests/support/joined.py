"""Sessions as the tests of applications have them: in a transaction that is rolled back at the end."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import ForeignKey, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from tests.support import pooler
from tests.support.databases import driver_url

T = TypeVar("T")

#: (driver, whether it is an AsyncSession, how it is bound)
KINDS = [
    ("psycopg", False, "outer"),
    ("psycopg", False, "engine"),
    ("psycopg", True, "outer"),
    ("psycopg", True, "engine"),
    ("psycopg2", False, "outer"),
    ("pg8000", False, "outer"),
    ("asyncpg", True, "outer"),
]
NAMES = [f"{driver}-{'async' if is_async else 'sync'}-{how}" for driver, is_async, how in KINDS]


class Base(DeclarativeBase):
    pass


class Order(Base):
    """The application's own table."""

    __tablename__ = "joined_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)
    receipt: Mapped[str | None]
    lines: Mapped[list[Line]] = relationship(viewonly=True)
    note: Mapped[str] = mapped_column(default="", deferred=True)


class Line(Base):
    """Its lines go with an order."""

    __tablename__ = "joined_lines"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id, ondelete="CASCADE"))


async def settle(value: T | Awaitable[T]) -> T:
    """What a sync or an async call gives."""
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def joined(url: str, driver: str, *, is_async: bool, how: str) -> AsyncIterator[Any]:
    """A session of this kind; whatever is committed in it, nothing stays if it is bound to an outer transaction."""
    url = driver_url(url, driver)
    options: dict[str, Any] = {"expire_on_commit": False}
    if is_async:
        async_engine = create_async_engine(url, **pooler.engine_options(url))
        async with async_engine.connect() as async_connection:
            await async_connection.begin()
            bind: Any = async_connection if how == "outer" else async_engine
            joining = {"join_transaction_mode": "create_savepoint"} if how == "outer" else {}
            async with AsyncSession(bind, **options, **joining) as async_session:
                yield async_session
            await async_connection.rollback()
        await async_engine.dispose()
        return
    engine = create_engine(url, **pooler.engine_options(url))
    with engine.connect() as connection:
        transaction = connection.begin()
        if how == "outer":
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                yield session
        else:
            with Session(engine) as session:
                yield session
        transaction.rollback()
    engine.dispose()
