"""The worker's own connections: taken from an engine permanently, set up for service, never shared with handlers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from ...errors import AutocommitError, ConfigurationError
from ...sql.store import Store, default_store
from ...sql.tables import land
from ...util import forks
from . import pool as driver
from .pool import Deadline

#: The planner, left alone, picks a sequential scan or a bitmap for a plan made on an empty table, and keeps it while
#: 200,000 jobs arrive (150 ms a claim instead of 0.3); it joins a batch's arrays to its rows by nested loops, because it
#: believes in one row (62 ms for 229 outcomes instead of 6; the claim's LATERAL joins are nested loops either way);
#: JIT compiles a 0.6 ms claim for 10 ms; and it plans each claim again, 0.4 ms of the 2.1 from a commit to the start of
#: the handler, because it believes that this pays. PostgreSQL 15 to 18, November 2026.
_PLANNER = {
    **{f"enable_{node}": "off" for node in ("seqscan", "bitmapscan", "sort", "nestloop")},
    # The plans to use instead, where a role or a database has them off.
    **{f"enable_{node}": "on" for node in ("indexscan", "indexonlyscan", "hashjoin")},
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

# The following settings are all that a role or a database may set (ALTER ROLE ... SET), in PostgreSQL 15 to 18, and that would end a
# connection of ours or change its results. These were checked and are left alone:
# - search_path and session_replication_role: the application's triggers on the table run with them. row_security as well.
# - default_transaction_read_only: an operator who sets it wants nothing written; the worker waits until it is reset.
# - synchronous_commit, and other settings of COMMIT: the application decides how durable a commit is.
# - tcp_keepalives_*, tcp_user_timeout, client_connection_check_interval: they end a connection whose client is gone.
# - TimeZone, IntervalStyle, bytea_output, lc_*: psycopg respects them, or no such value is read here; likewise
#   standard_conforming_strings, which SQLAlchemy asks for; no text of ours has a backslash.
# - work_mem, costs, limits of the planner, parallel workers: with the settings above only a single plan is left.
# - settings for superusers only, such as temp_file_limit: they would be refused.

#: Seconds (0: none), or values, without which the server may end a session that is idle, or at its first error.
_ENDURING = {"idle_session_timeout": "0", "transaction_timeout": "0", "exit_on_error": "off"}
#: For exact values: every character, a NULL in an array, a time to the microsecond as a number.
_EXACT = {"client_encoding": "UTF8", "array_nulls": "on", "extra_float_digits": "1"}
#: Settings that not every version has: `transaction_timeout` came with PostgreSQL 17.
_NOT_EVERYWHERE = frozenset({"transaction_timeout"})

#: The name of the worker's own connections, for example in `pg_stat_activity`.
APPLICATION = "sa-jobqueue worker"


@dataclass(frozen=True, slots=True)
class Connector:
    """Opens service connections on `engine`, for the statements of `store`.

    `pooled`: each transaction sets everything again, and no statement is prepared.
    """

    engine: sa.Engine
    lease: float
    pooled: bool = False
    translate: Mapping[str | None, str | None] | None = None
    store: Store = default_store

    @property
    def limit(self) -> float:
        """Seconds after which the server ends a statement or a silent transaction of ours."""
        return service_limit(self.lease)

    def connect(self, deadline: Deadline | None = None) -> sa.Connection:
        """A connection of our own, taken out of the pool permanently; READ COMMITTED. `deadline` holds for its first statements, too.

        Outside of `begin` the driver is in autocommit, because most service transactions are one statement.
        """
        connection = self.engine.connect()
        try:
            refuse_autocommit(connection)
            options: dict[str, Any] = {"isolation_level": "READ COMMITTED"}
            if self.translate:
                options["schema_translate_map"] = dict(self.translate)
            connection = connection.execution_options(**options)
            connection.detach()
            forks.guard(driver.psycopg_of(connection))
            if self.pooled:
                # Overrides the engine: a statement prepared in a transaction does not exist in the next.
                raw: Any = connection.connection.dbapi_connection
                raw.prepare_threshold = None
            else:
                with nullcontext() if deadline is None else deadline.over(connection), connection.begin():
                    self._set(connection, local=False)
                _autocommit(connection, True)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def begin(self, connection: sa.Connection) -> Generator[None]:
        """A service transaction. What was sent before is awaited first."""
        land(connection)
        if self.pooled:
            with connection.begin():
                self._set(connection, local=True)
                yield
            return
        _autocommit(connection, False)
        try:
            with connection.begin():
                yield
        finally:
            _autocommit(connection, True)

    def begin_one(self, connection: sa.Connection) -> AbstractContextManager[Any]:
        """Like `begin`, for a single statement that is its own transaction: it takes one round trip instead of three."""
        if self.pooled:
            return self.begin(connection)
        land(connection)
        return connection.begin()

    def _set(self, connection: sa.Connection, *, local: bool) -> None:
        connection.exec_driver_sql(setting(service_settings(self.lease), local=local))


def _autocommit(connection: sa.Connection, on: bool) -> None:
    if not connection.closed and not connection.invalidated:
        raw: Any = connection.connection.dbapi_connection
        if not raw.closed:
            raw.autocommit = on


def service_settings(lease: float) -> dict[str, str]:
    """The settings of a service connection. docs/reference/statements.md lists them for authors of other workers."""
    return {
        **_PLANNER,
        **lasting_settings(service_limit(lease)),
        # The server begins a single statement's transaction, at this level. At a higher level, claims would fail by other claims.
        "default_transaction_isolation": "read committed",
        "DateStyle": "ISO",  # psycopg reads times in no other style
        # Locked rows of the queue are skipped. A statement waits only for rows of the application that reference a job which it
        # deletes, and for locks of the whole table.
        "lock_timeout": "250ms",
        "application_name": APPLICATION,
    }


def lasting_settings(limit: float) -> dict[str, str]:
    """Settings that keep the server from ending a connection of ours, unless a statement or transaction takes `limit` seconds.

    A host suspended between claim and commit would hold rows that every worker skips and no rescue sees. The server ends such a
    transaction before the lease would have ended.
    """
    milliseconds = f"{int(limit * 1000)}ms"
    deadlines = {"statement_timeout": milliseconds, "idle_in_transaction_session_timeout": milliseconds}
    return {**_ENDURING, **_EXACT, **deadlines}


@lru_cache
def _setting(settings: tuple[tuple[str, str], ...], local: bool) -> str:
    calls = []
    for name, value in settings:
        call = f"set_config('{name}', '{value}', {str(local).lower()})"
        there = f"current_setting('{name}', true) IS NOT NULL"
        calls.append(f"CASE WHEN {there} THEN {call} END" if name in _NOT_EVERYWHERE else call)
    return f"SELECT {', '.join(calls)}"


def setting(settings: Mapping[str, str], *, local: bool = False) -> str:
    """A statement that makes all settings that this version of the server has. Behind a pooler each transaction begins with it, so
    its text is cached.
    """
    return _setting(tuple(settings.items()), local)


def service_limit(lease: float) -> float:
    """Seconds after which the server ends a service statement, or a silent service transaction.

    Not above the lease; and not long even with a long lease, because a connection whose server is gone must be noticed soon.
    """
    return min(max(lease, 0.5), 10.0)


def check_driver(dialect: sa.Dialect) -> None:
    """Refuse an engine of another driver than psycopg 3."""
    if dialect.driver != "psycopg":
        raise ConfigurationError(
            f"the worker needs psycopg 3, not {dialect.driver!r}: make its engine from postgresql+psycopg://... "
            "(enqueueing works over any driver)"
        )


def refuse_autocommit(connection: sa.Connection) -> None:
    """Refuse a connection in AUTOCOMMIT mode: a worker's statements belong together."""
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise AutocommitError
