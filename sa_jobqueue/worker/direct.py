"""What is said to the server around a handler's own statements: BEGIN, and the job's completion with COMMIT, in one message.

A thread says it by one call of libpq's each. psycopg says it in steps, and gives up Python's lock at each; 32 threads take
it from each other then, from core to core: 19 switches a job in place of 14 (one INSERT each; November 2026).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Pool
from sqlalchemy.exc import DBAPIError

from ..compiled import as_sqlalchemy, is_heard
from ..lifecycle import Change
from ..models import Job
from ..operations import completion_text

__all__ = ["begin", "command", "commit"]

logger = logging.getLogger(__name__)

#: Of `psycopg.pq.TransactionStatus`; psycopg is not to be imported with the package.
_IDLE, _IN_TRANSACTION = 0, 2

_STATEMENT, _LOST = "sa_jobqueue_complete", "sa_jobqueue: the claim was lost"
#: The server's COMMIT must not follow where the claim is no longer valid: the statement fails then, and says why.
_PREPARE = (
    "PREPARE sa_jobqueue_complete (bigint, integer, double precision, text) AS WITH done AS ({}) "
    "SELECT CASE pg_catalog.count(*) WHEN 1 THEN 1 "
    "ELSE pg_catalog.concat('sa_jobqueue: the claim was lost', pg_catalog.count(*))::integer END FROM done"
)
#: SQLSTATE of such a failure: a text that is no integer.
_NO_INTEGER = "22P02"
#: SQLSTATEs of an EXECUTE of what is not prepared, and of a PREPARE of what is: another one's, behind a pooler.
_NOT_AS_PREPARED = frozenset({"26000", "42P05"})
#: The pools of connections on which somebody says DEALLOCATE, or which a pooler shares out.
_FORGETFUL: WeakSet[Pool] = WeakSet()


def begin(connection: Connection) -> None:
    """BEGIN now, where psycopg would say it before the first statement.

    What goes wrong here goes wrong again with that statement.
    """
    raw = _thread_connection(connection)
    if raw is None or raw.autocommit or (raw.isolation_level, raw.read_only, raw.deferrable) != (None, None, None):
        return  # psycopg knows what to say
    with raw.lock, suppress(connection.dialect.loaded_dbapi.Error):
        if raw.pgconn.transaction_status == _IDLE:
            result = raw.pgconn.exec_(b"BEGIN")
            if error := result.error_message:
                logger.warning("a handler's connection: %s", error.decode(errors="replace").strip())


def command(connection: Connection, change: Change, *, worker: str, job: type[Job]) -> str | None:
    """What to `commit` this change with, prepared on this connection. `worker`: its id, which is a UUID.

    None: it has more to say than "done", or somebody is to hear of each statement, or nothing can be prepared here.
    """
    if connection.dialect.driver != "psycopg" or not change.plain or change.deletes or is_heard(connection, "commit"):
        return None
    raw: Any = connection.connection.driver_connection
    if raw is None or not raw.prepare_threshold or raw.pgconn.transaction_status != _IN_TRANSACTION:
        return None  # a handler has detached it, or set it up in its own way; or there is nothing to commit
    if connection.engine.pool in _FORGETFUL:
        return None
    if _STATEMENT not in connection.info:
        given = {"done_id": "$1", "done_claims": "$2", "done_retain": "$3", "fence_worker": "$4"}
        try:
            _say(connection, _PREPARE.format(completion_text(connection, job) % given))
        except DBAPIError as error:
            _heed(connection, error)
            raise
        connection.info[_STATEMENT] = True
    retain = "NULL" if change.retain is None else repr(float(change.retain))
    return f"EXECUTE {_STATEMENT} ({change.id}, {change.claims}, {retain}, '{worker}'); COMMIT"


def commit(connection: Connection, command: str) -> bool:
    """Complete the job and commit; False: its claim was lost, and there is nothing to do but to roll back.

    Raises what SQLAlchemy would.
    """
    try:
        _say(connection, command)
    except DBAPIError as error:
        _heed(connection, error)
        original: Any = error.orig
        if original.sqlstate == _NO_INTEGER and _LOST in (original.diag.message_primary or ""):
            return False
        raise
    return True


def _heed(connection: Connection, error: DBAPIError) -> None:
    """Prepare nothing any more where it does not stay."""
    original: Any = error.orig
    if original.sqlstate in _NOT_AS_PREPARED:
        _FORGETFUL.add(connection.engine.pool)


def _say(connection: Connection, text: str) -> None:
    """One message to the server, without parameters."""
    dbapi: Any = connection.dialect.loaded_dbapi
    try:
        if (raw := _thread_connection(connection)) is None:
            cursor = connection.connection.cursor()
            cursor.execute(text)
            cursor.close()
            return
        with raw.lock:
            result = raw.pgconn.exec_(text.encode(raw.info.encoding))
        if raw.closed:
            raise dbapi.OperationalError(result.error_message.decode(raw.info.encoding, "replace"))
        if result.error_message:
            raise dbapi.errors.error_from_result(result, raw.info.encoding)
    except dbapi.Error as error:
        raise as_sqlalchemy(error, text, {}, connection) from error


def _thread_connection(connection: Connection) -> Any:
    """The psycopg connection of a thread's; None where it is another driver's, or a task's of an event loop."""
    dialect = connection.dialect
    if dialect.driver != "psycopg" or dialect.is_async:
        return None
    return connection.connection.dbapi_connection
