"""The database of a dashboard: reads that change nothing and are given up after 2 s, and actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
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

#: A read that takes longer is given up: a busy server must not become busier by those who look at it.
PATIENCE = timedelta(seconds=2)
#: An action waits this long for rows that others have locked; what it does itself may take longer.
_LOCK_PATIENCE = timedelta(seconds=2)
_ACTION_PATIENCE = timedelta(seconds=30)
#: Looks at the same time, of all viewers together.
_AT_ONCE = 4


class Database:
    """Both kinds of engines alike: what is read or done is a plain function of a Connection."""

    def __init__(
        self, engine: Anywhere, read_from: Anywhere | None = None, *, schema: str | None = None, own: str | None = None
    ) -> None:
        """`schema`: where the tables are in place of ours. `own`: the schema of a job table of the application's own."""
        for one in (engine, *([] if read_from is None else [read_from])):
            if not isinstance(one, (sa.Engine, AsyncEngine)):
                raise ConfigurationError(f"the dashboard needs an Engine or an AsyncEngine, not {one!r}")
        self._engine = _placed(engine, schema)
        self._reader = self._engine if read_from is None else _placed(read_from, schema)
        self.has_replica = read_from is not None
        self._own = own
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def read(self, context: Callable[[sa.Connection], T]) -> T:
        """Read, in a READ ONLY transaction. Raises Refusal where the database does not let it."""

        def looked(connection: sa.Connection) -> T:
            make_reading(connection, statement=PATIENCE, lock=PATIENCE / 4, idle=5 * PATIENCE)
            check_schema(connection, self._own)
            return context(connection)

        # One that has made its callers wait belongs to their event loop.
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
            return await _within(self._reader, looked, commit=False)

    async def act(self, do: Callable[[sa.Connection], T]) -> T:
        """Do it in one transaction, on the primary. Raises Refusal where the database does not let it; then nothing is changed."""

        def done(connection: sa.Connection) -> T:
            limits = {"statement_timeout": _ACTION_PATIENCE, "lock_timeout": _LOCK_PATIENCE}
            settings = ", ".join(
                f"set_config('{name}', '{int(limit.total_seconds() * 1000)}ms', true)" for name, limit in limits.items()
            )
            connection.exec_driver_sql(f"SELECT {settings}")
            check_schema(connection, self._own)
            return do(connection)

        return await _within(self._engine, done, commit=True)


async def _within(engine: Anywhere, do: Callable[[sa.Connection], T], *, commit: bool) -> T:
    """Call `do` with a connection of this engine, in a transaction of its own, on a thread or within the event loop."""
    # Also where the engine is in AUTOCOMMIT mode.
    level: Any = {"isolation_level": "READ COMMITTED"}
    try:
        if isinstance(engine, AsyncEngine):
            connecting: AsyncConnection = engine.connect()
            async with connecting as connection:
                await connection.execution_options(**level)
                return await connection.run_sync(lambda one: _in_transaction(one, do, commit=commit))
        return await run_in_threadpool(_on_thread, engine.connect, level, do, commit)
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        raise refusal from error


def _on_thread(
    connect: Callable[[], AbstractContextManager[sa.Connection]],
    level: Any,
    do: Callable[[sa.Connection], T],
    commit: bool,
) -> T:
    with connect() as connection:
        return _in_transaction(connection.execution_options(**level), do, commit=commit)


def _in_transaction(connection: sa.Connection, do: Callable[[sa.Connection], T], *, commit: bool) -> T:
    with connection.begin() as transaction:
        answer = do(connection)
        if not commit:
            transaction.rollback()
        return answer


def _placed(engine: Any, schema: str | None) -> Any:
    return engine if schema is None else engine.execution_options(schema_translate_map={SCHEMA: schema})
