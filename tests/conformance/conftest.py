"""Clients: each driver in each way that SQLAlchemy has of talking through it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue.enqueueing.jobs import enqueue, enqueue_many
from tests.support import pooler
from tests.support.databases import driver_url
from tests.support.engines import new_async_engine, new_engine
from tests.support.nightly import nightly

T = TypeVar("T")

SYNC = ("psycopg", "psycopg2", "pg8000")
ASYNC = ("psycopg", "asyncpg")
CLIENTS = [
    *((driver, kind) for driver in SYNC for kind in ("Session", "Connection")),
    *((driver, kind) for driver in ASYNC for kind in ("AsyncSession", "AsyncConnection")),
]
#: The clients that each change is tested with: every driver in one way.
DAILY = [
    ("psycopg", "Session"), ("psycopg2", "Connection"), ("pg8000", "Session"),
    ("psycopg", "AsyncConnection"), ("asyncpg", "AsyncSession"),
]  # fmt: skip
ISOLATION = ["READ COMMITTED", "SERIALIZABLE", *nightly("REPEATABLE READ")]
SESSIONS = [client for client in CLIENTS if client[1].endswith("Session")]


class Base(DeclarativeBase):
    pass


class Order(Base):
    """The application's own table."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)


async def settle(value: T | Awaitable[T]) -> T:
    """What a sync or an async call gives."""
    return await value if inspect.isawaitable(value) else value


@dataclass
class Client:
    """One driver, used in one way."""

    kind: str
    engine: Any

    @property
    def is_orm(self) -> bool:
        return self.kind.endswith("Session")

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Any]:
        """A Session or a Connection, with these execution options, not committed at the end."""
        engine = self.engine.execution_options(**options)
        match self.kind:
            case "Session":
                with Session(engine) as unit:
                    yield unit
            case "AsyncSession":
                async with AsyncSession(engine) as unit:
                    yield unit
            case "Connection":
                with engine.connect() as unit:
                    yield unit
            case _:
                async with engine.connect() as unit:
                    yield unit

    async def put(self, unit: Any, *calls: tuple[Any, ...]) -> None:
        """Enqueue (task, *args), in the way that suits."""
        if self.is_orm:
            unit.add_all([enqueue(task, *args) for task, *args in calls])
            await settle(unit.flush())
        else:
            await settle(unit.execute(enqueue_many(task.call(*args) for task, *args in calls)))

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """The texts of the statements that are sent meanwhile."""
        sent: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            sent.append(statement)

        engine = self.engine.sync_engine if isinstance(self.engine, AsyncEngine) else self.engine
        event.listen(engine, "before_cursor_execute", note)
        try:
            yield sent
        finally:
            event.remove(engine, "before_cursor_execute", note)


@pytest.fixture(params=[*DAILY, *nightly(*(client for client in CLIENTS if client not in DAILY))], ids="-".join)
async def client(request: pytest.FixtureRequest, shared_database_url: str) -> AsyncIterator[Client]:
    driver, kind = request.param
    if driver == "pg8000" and pooler.is_pooled(shared_database_url):
        pytest.skip("pg8000 sets isolation levels on the session, and hangs behind PgBouncer when it sets them back")
    url = driver_url(shared_database_url, driver)
    if kind.startswith("Async"):
        engine = new_async_engine(url)
        yield Client(kind, engine)
        await engine.dispose()
    else:
        sync = new_engine(url)
        yield Client(kind, sync)
        sync.dispose()


@pytest.fixture
def application(engine: Engine) -> Engine:
    """The engine that looks at the results, psycopg, on a database with the application's table."""
    Base.metadata.create_all(engine)
    return engine
