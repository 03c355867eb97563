"""The database of a dashboard: read-only transactions that are given up after 2 s, and actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.concurrency import run_in_threadpool

from ..doctor import make_reading
from ..errors import ConfigurationError
from ..migrations.runner import check_schema
from ..util.schema import SCHEMA
from .refusals import refusal_of

T = TypeVar("T")
#: Both kinds of engines.
Anywhere: TypeAlias = sa.Engine | AsyncEngine

#: A read that takes longer is given up, so that viewers do not make a busy server busier.
PATIENCE = timedelta(seconds=2)
#: How long an action waits for locked rows, and how long its statements may take.
_LOCK_PATIENCE = timedelta(seconds=2)
_ACTION_PATIENCE = timedelta(seconds=30)
#: The most simultaneous reads, of all viewers together.
_AT_ONCE = 4


class Database:
    """Calls plain functions of a Connection, over both kinds of engines."""

    def __init__(
        self, engine: Anywhere, read_from: Anywhere | None = None, *, schema: str | None = None, own: str | None = None
    ) -> None:
        """`schema`: the schema of the tables, if not the default. `own`: the schema of the application's own job table."""
        for given in (engine, *([] if read_from is None else [read_from])):
            if not isinstance(given, (sa.Engine, AsyncEngine)):
                raise ConfigurationError(f"the dashboard needs an Engine or an AsyncEngine, not {given!r}")
        self.engine = _placed(engine, schema)
        self._reader = self.engine if read_from is None else _placed(read_from, schema)
        self.has_replica = read_from is not None
        self._own = own
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def read(self, read: Callable[[sa.Connection], T]) -> T:
        """Read in a READ ONLY transaction. Raises Refusal if the database does not allow it."""

        def do(connection: sa.Connection) -> T:
            make_reading(connection, statement=PATIENCE, lock=PATIENCE / 4, idle=5 * PATIENCE)
            check_schema(connection, self._own)
            return read(connection)

        # A semaphore that has made callers wait belongs to their event loop.
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
            return await _within(self._reader, do, commit=False)

    async def act(self, act: Callable[[sa.Connection], T]) -> T:
        """Act in one transaction, on the primary. Raises Refusal if the database does not allow it; then nothing is changed."""

        def do(connection: sa.Connection) -> T:
            limits = {"statement_timeout": _ACTION_PATIENCE, "lock_timeout": _LOCK_PATIENCE}
            settings = ", ".join(
                f"set_config('{name}', '{int(limit.total_seconds() * 1000)}ms', true)" for name, limit in limits.items()
            )
            connection.exec_driver_sql(f"SELECT {settings}")
            check_schema(connection, self._own)
            return act(connection)

        return await _within(self.engine, do, commit=True)


async def _within(engine: Anywhere, do: Callable[[sa.Connection], T], *, commit: bool) -> T:
    """Call `do` with a connection of this engine, in a transaction of its own, on a thread or within the event loop."""
    # Stated in case the engine is in AUTOCOMMIT mode.
    level: Any = {"isolation_level": "READ COMMITTED"}
    try:
        if isinstance(engine, AsyncEngine):
            connecting: AsyncConnection = engine.connect()
            async with connecting as connection:
                await connection.execution_options(**level)
                return await connection.run_sync(_in_transaction, do, commit=commit)

        def on_thread() -> T:
            with engine.connect() as connection:
                return _in_transaction(connection.execution_options(**level), do, commit=commit)

        return await run_in_threadpool(on_thread)
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        raise refusal from error


def _in_transaction(connection: sa.Connection, do: Callable[[sa.Connection], T], *, commit: bool) -> T:
    with connection.begin() as transaction:
        answer = do(connection)
        if not commit:
            transaction.rollback()
        return answer


def _placed(engine: Any, schema: str | None) -> Any:
    return engine if schema is None else engine.execution_options(schema_translate_map={SCHEMA: schema})
