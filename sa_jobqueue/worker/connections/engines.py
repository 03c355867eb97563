"""The engines of a worker: made from URLs and closed by it, or given by the application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ...errors import ConfigurationError, DatabaseUnavailable
from ...migrations import check_schema
from ...util.log import get_logger
from ...util.schema import SCHEMA, quote
from ...util.urls import database_url, mask_passwords, not_connected
from .pool import is_behind_pooler, leave_out_closed, most_of, widen
from .service import check_driver, refuse_autocommit

logger = get_logger(__name__)

#: Connections of a worker process in addition to those of the handlers' sessions: claimer, maintenance, listener.
SERVICE_CONNECTIONS = 3

#: An hour: a handler may compute for long between two statements, but a suspended host or a forgotten child process must not hold its
#: locks forever. Set only if neither role nor database nor URL sets it.
_END_IDLE = (
    "SELECT set_config('idle_in_transaction_session_timeout', '1h', false) "
    "WHERE current_setting('idle_in_transaction_session_timeout') = '0'"
)


class Engines:
    """The engines for `database`, with pools for `slots` handlers. The other arguments are those of `Worker`.

    Raises ConfigurationError for a URL or a schema's name that cannot be used.
    """

    def __init__(
        self,
        database: str | sa.URL | sa.Engine,
        *,
        async_engine: AsyncEngine | None,
        listen: bool,
        listen_url: str | sa.URL | None,
        schema: str | None,
        slots: int,
        pooled: bool,
        named: str = SCHEMA,
    ) -> None:
        if isinstance(database, AsyncEngine):
            raise ConfigurationError(
                "the worker itself needs a URL or an Engine (create_engine); pass the AsyncEngine as async_engine="
            )
        if not isinstance(database, (str, sa.URL, sa.Engine)):
            raise ConfigurationError(f"the database is a URL or an Engine, not {database!r}")
        if async_engine is not None and not isinstance(async_engine, AsyncEngine):
            raise ConfigurationError(f"async_engine is an AsyncEngine (create_async_engine), not {async_engine!r}")
        if isinstance(database, sa.Engine):
            check_driver(database.dialect)
        if async_engine is not None and async_engine.dialect.name != "postgresql":
            raise ConfigurationError(
                f"async_engine must be of a PostgreSQL database, not of {async_engine.dialect.name}"
            )
        self._slots, self._pooled = slots, pooled
        self._limit = 0
        """The most connections that the server allows. Written by `check`."""
        self._options = _options(slots, pooled=pooled)
        if schema is not None:
            quote(schema)  # refuses what cannot be a schema's name
            self._options["execution_options"] = {"schema_translate_map": {named: schema}}
        self._ours: list[sa.Engine] = []
        self._ours_async: list[AsyncEngine] = []
        self.main = database if isinstance(database, sa.Engine) else self._make(database_url(database))
        """For the worker itself, and for the sessions of `def` handlers."""
        self.asynchronous = async_engine
        """The engine for the sessions of `async def` handlers, if any."""
        if async_engine is None and not isinstance(database, sa.Engine):
            self.asynchronous = create_async_engine(self.main.url, **self._options)
            self._prepare(self.asynchronous.sync_engine)
            self._ours_async.append(self.asynchronous)
        self.listener: sa.Engine | None = None
        """For LISTEN; None: only poll."""
        if listen:
            self.listener = self.main if listen_url is None else self._make(database_url(listen_url))
        given: Mapping[Any, Any] = self.main.get_execution_options().get("schema_translate_map") or {}
        self.translate: dict[str | None, str | None] = {named: schema} if schema is not None else dict(given)
        """The `schema_translate_map` that finds the tables."""
        self.schema: str = self.translate.get(named, named) or str(self.main.dialect.default_schema_name or "public")
        """The schema of the tables; `named`: the schema that their classes name."""

    def _make(self, url: sa.URL) -> sa.Engine:
        engine = self._prepare(sa.create_engine(url, **self._options))
        self._ours.append(engine)
        return engine

    def _prepare(self, engine: sa.Engine) -> sa.Engine:
        leave_out_closed(engine)
        if not self._pooled:  # behind a pooler the setting would stay for another client
            event.listen(engine, "connect", _end_idle)
        return engine

    def check(self) -> None:
        """Check that the server answers, has our schema, and allows enough connections.

        Raises DatabaseUnavailable, SchemaError, ConfigurationError.
        """
        try:
            with self.main.connect() as connection:
                refuse_autocommit(connection)
                translated = connection.execution_options(schema_translate_map=self.translate)
                check_schema(translated, self.schema)
                self._limit = limit = int(connection.execute(sa.text("SHOW max_connections")).scalar_one())
                if not self._pooled and is_behind_pooler(connection):
                    logger.warning("a pooler answers for the database: if it pools transactions, work with --pooled")
        except DBAPIError as error:
            raise DatabaseUnavailable(mask_passwords(not_connected(error.orig or error))) from error
        if limit < SERVICE_CONNECTIONS + 1:
            raise ConfigurationError(f"the server allows {limit} connections; a worker needs {SERVICE_CONNECTIONS + 1}")
        if limit < SERVICE_CONNECTIONS + self._slots:
            logger.warning(
                "the server allows %d connections; with %d slots this worker may want %d, if every handler uses "
                "ctx.session at once", limit, self._slots, SERVICE_CONNECTIONS + self._slots,
            )  # fmt: skip

    def grow(self, slots: int, *, now: int) -> None:
        """Make room in the pools for `slots` connections. `now`: the current number of slots. Open connections stay open.

        Raises ConfigurationError if the server, or a pool of the application's, allows too few connections.
        """
        if slots <= now:
            return
        wants = f"{slots} slots need up to {slots + SERVICE_CONNECTIONS} connections, one for the ctx.session of each handler;"
        if slots + SERVICE_CONNECTIONS > self._limit:
            raise ConfigurationError(f"{wants} the server allows {self._limit} (max_connections)")
        ours = [*self._ours, *(engine.sync_engine for engine in self._ours_async)]
        given = {self.main: SERVICE_CONNECTIONS}
        if self.asynchronous is not None:
            given |= {self.asynchronous.sync_engine: 0}
        for engine, besides in given.items():
            most = None if engine in ours else most_of(engine.pool)
            if most is not None and most < slots + besides:
                raise ConfigurationError(
                    f"{wants} the pool of the application's engine allows {most} (pool_size and max_overflow)"
                )
        for engine in ours:
            widen(engine.pool, slots)

    async def dispose(self) -> None:
        """Close the pools of the engines that the worker made."""
        for asynchronous in self._ours_async:
            await asynchronous.dispose()
        for engine in self._ours:
            engine.dispose()


def _end_idle(connection: Any, _: object) -> None:
    """Let the server end transactions that are idle for long. It costs a round trip for each new connection, but none for a job."""
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute(_END_IDLE)
    cursor.close()
    connection.autocommit = False


def _options(slots: int, *, pooled: bool) -> dict[str, Any]:
    connect_args: dict[str, Any] = {
        "connect_timeout": 10, "tcp_user_timeout": 20_000,
        "keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    }  # fmt: skip
    if pooled:
        connect_args["prepare_threshold"] = None
    # A connection per slot, so that no handler waits for another's. The worker takes its own connections out of the pool.
    return {"pool_size": slots, "max_overflow": SERVICE_CONNECTIONS, "connect_args": connect_args}
