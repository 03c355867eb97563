"""What a driver's connection knows of its own state, without asking the server."""

from __future__ import annotations

from threading import Lock
from typing import Any

import sqlalchemy as sa

__all__ = ["is_busy", "psycopg_of"]

#: A value of `psycopg.pq.TransactionStatus`. The package must not import psycopg.
_ACTIVE = 1
#: Seconds that a thread which a handler left behind may take for its last statement.
_LAST_STATEMENT = 2.0


def psycopg_of(connection: sa.Connection) -> Any:
    """The psycopg connection below, sync or async; None where it is another driver's."""
    raw: Any = connection.connection.dbapi_connection  # of a thread it is psycopg's own
    if isinstance(raw, sa.AdaptedConnection):  # that of SQLAlchemy 2.0 has the other's attributes, too
        raw = raw.driver_connection
    return raw if hasattr(raw, "pgconn") else None


def is_busy(raw: Any) -> bool:
    """Whether a command is under way on what `psycopg_of` found, so that the next one would wait: a COPY or a stream that was not
    read to its end, say.
    """
    if raw is None or raw.pgconn.transaction_status != _ACTIVE:
        return False
    lock = raw.lock
    if type(lock) is type(Lock()) and lock.acquire(
        timeout=_LAST_STATEMENT
    ):  # a thread's: it may just be in a statement
        lock.release()
        return bool(raw.pgconn.transaction_status == _ACTIVE)
    return True
