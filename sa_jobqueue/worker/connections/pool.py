"""Connections of an engine's pool, and how a broken connection is closed."""

from __future__ import annotations

import os
import select as select_module
import socket
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError

from ...errors import ConfigurationError
from ...util.log import get_logger

logger = get_logger(__name__)

#: Seconds after which a connection may have been lost unnoticed.
_JUST_NOW = 0.5


def is_behind_pooler(connection: sa.Connection) -> bool:
    """Whether a pooler answers at the engine's URL: then the server process is not the process that the driver knows."""
    raw: Any = connection.connection.dbapi_connection
    answering: int = connection.scalars(sa.select(sa.func.pg_backend_pid())).one()
    return bool(raw.info.backend_pid != answering)


def refuse_pooler(connection: sa.Connection) -> None:
    """Raise ConfigurationError where a pooler answers, for code that needs one server process over several transactions."""
    if is_behind_pooler(connection):
        raise ConfigurationError(
            "a pooler answers for the database, and this needs the server itself: give a URL that leads past the pooler "
            "(--database-url)"
        )


def most_of(pool: sa.Pool) -> int | None:
    """The most connections of a pool; None: any number."""
    overflow: int = vars(pool).get("_max_overflow", -1)
    return pool.size() + overflow if isinstance(pool, sa.QueuePool) and overflow >= 0 else None


def widen(pool: sa.Pool, size: int) -> None:
    """Let a pool keep `size` connections, if it would keep fewer. SQLAlchemy sizes a pool only when it is made."""
    if not isinstance(pool, sa.QueuePool) or (more := size - pool.size()) <= 0:
        return
    own = vars(pool)
    with own["_overflow_lock"]:
        kept = own["_pool"]
        kept.maxsize = size
        if (
            of_loop := vars(kept).get("_queue")
        ) is not None:  # the queue of asyncio that the pool of an AsyncEngine uses after its first use
            vars(of_loop)["_maxsize"] = size
        own["_overflow"] -= more


def leave_out_closed(engine: sa.Engine) -> None:
    """Let the pool hand out no connection whose server has gone meanwhile, which would cost a handler an attempt.

    Such a connection is recognized without a round trip: there is something to read on it, though nothing was asked. A connection
    that was just used is not checked, because that would make a busy pool a fifth slower.
    """
    if not hasattr(select_module, "poll"):
        return

    @event.listens_for(engine, "checkin")
    def note(connection: Any, record: Any) -> None:
        record.info["sa_jobqueue.used"] = monotonic()

    @event.listens_for(engine, "checkout")
    def check(connection: Any, record: Any, proxy: Any) -> None:
        if monotonic() - record.info.get("sa_jobqueue.used", 0.0) < _JUST_NOW:
            return
        poll = select_module.poll()
        poll.register(record.driver_connection.pgconn.socket, select_module.POLLIN)
        if poll.poll(0):
            raise DisconnectionError


def hang_up(connection: sa.Connection) -> None:
    """Close a service connection that may be broken, in any state."""
    raw: Any = connection.connection.dbapi_connection if not connection.closed and not connection.invalidated else None
    closes = [connection.invalidate, connection.close]
    for close in closes if raw is None else [raw.close, *closes]:
        try:
            close()
        except Exception:
            logger.debug("a broken connection did not close", exc_info=True)


def give_up(connection: sa.Connection | None, engine: sa.Engine, *, failures: int) -> bool:
    """Close a service connection, if any, after this many `failures` in a row; after the first, the pool's idle connections, too.

    Returns whether to log this failure: the first, and each twentieth.
    """
    if connection is not None:
        hang_up(connection)
    if failures == 1:
        drop_idle(engine)
    return failures == 1 or failures % 20 == 0


def drop_idle(engine: sa.Engine) -> None:
    """Close the idle connections of the pool, after a service connection failed: they may be broken, too, and `pool_pre_ping` checks
    in `connect()`, where no deadline holds. Connections that are checked out stay open.
    """
    try:
        engine.dispose()
    except Exception:  # from a listener of the application
        logger.debug("the pool did not close", exc_info=True)


# ---- The client's own deadline for a service connection.

#: Seconds that the client waits after the server should have ended a statement.
CLIENT_MARGIN = 5.0


class Deadline:
    """A deadline in the client: a service transaction that takes longer than `limit` seconds is cut off.

    The server ends a statement after its timeout. A statement that takes longer waits on a socket whose server is gone. Its thread
    writes `_busy`; the watchdog reads it, and may cut the connection off.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._busy: tuple[float, sa.Connection] | None = None

    @contextmanager
    def over(self, connection: sa.Connection) -> Generator[None]:
        """Watch the block inside. A nested `over` has its own time, and after it the outer block's time begins again."""
        outer, self._busy = self._busy, (monotonic(), connection)
        try:
            yield
        finally:
            self._busy = None if outer is None else (monotonic(), outer[1])

    def check(self) -> None:
        """Cut off a connection that has taken too long; its thread gets an error, and opens a new connection."""
        busy = self._busy
        if busy is None or monotonic() - busy[0] < self._limit:
            return
        try:
            raw: Any = busy[1].connection.dbapi_connection
            with socket.socket(fileno=os.dup(raw.pgconn.socket)) as stalled:
                stalled.shutdown(socket.SHUT_RDWR)
        except Exception:
            logger.debug("the connection was broken already", exc_info=True)
        logger.warning("a service connection has been silent for %g s; it is cut off", self._limit)


# ---- The state of a driver's connection, known without asking the server.

#: A value of `psycopg.pq.TransactionStatus`. The package must not import psycopg.
_ACTIVE = 1
#: Seconds that a thread which a handler left behind may take for its last statement.
_LAST_STATEMENT = 2.0


def psycopg_of(connection: sa.Connection) -> Any:
    """The underlying psycopg connection, sync or async; None where it is another driver's."""
    raw: Any = connection.connection.dbapi_connection  # on a thread it is psycopg's own
    if isinstance(raw, sa.AdaptedConnection):  # SQLAlchemy 2.0's has psycopg's attributes, too
        raw = raw.driver_connection
    return raw if hasattr(raw, "pgconn") else None


def is_busy(raw: Any) -> bool:
    """Whether a command is under way on a connection from `psycopg_of`, so that the next would wait: for example a COPY or a stream
    that was not read to its end.
    """
    if raw is None or raw.pgconn.transaction_status != _ACTIVE:
        return False
    lock = raw.lock
    # If it is a thread's lock, the thread may be in a statement just now.
    if type(lock) is type(Lock()) and lock.acquire(timeout=_LAST_STATEMENT):
        lock.release()
        return bool(raw.pgconn.transaction_status == _ACTIVE)
    return True
