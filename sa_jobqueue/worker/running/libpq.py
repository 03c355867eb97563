"""What a thread sends around a handler's own statements: BEGIN, and the job's completion with COMMIT.

Each is one libpq call. psycopg makes several and releases the GIL at each, over which 32 threads then compete, from core to core.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from ...lifecycle import Change
from ...log import get_logger
from ...schema import quote
from ...store import Store
from ...store.compiled import as_sqlalchemy, is_heard

__all__ = ["begin", "command", "commit"]

logger = get_logger(__name__)

#: Values of `psycopg.pq`'s TransactionStatus and PipelineStatus. The package must not import psycopg.
_IDLE, _IN_TRANSACTION, _NO_PIPELINE = 0, 2, 0
#: By `psycopg.IsolationLevel`. SQLAlchemy sets the second on a connection whose level was changed, to reset it.
_BEGIN = {None: b"BEGIN", 2: b"BEGIN ISOLATION LEVEL READ COMMITTED"}

#: The function's text names the table. After a schema was renamed that is another table.
_MAY = sa.text(
    "SELECT pg_catalog.has_function_privilege(oid, 'EXECUTE') AND pg_catalog.strpos(prosrc, :table) > 0 "
    "FROM pg_catalog.pg_proc WHERE oid = pg_catalog.to_regprocedure(CAST(:function AS text))"
)
#: Those of the function for a job without a result, and for one with a result.
_PARAMETERS = ("(bigint,bigint,double precision)", "(bigint,bigint,double precision,jsonb)")
#: The SQLSTATE by which the schema's function says that the claim is no longer valid.
_LOST = "SJQ01"
#: SQLSTATEs if the function is gone, or this role may no longer call it.
_GONE = frozenset({"42883", "42501"})


@dataclass(slots=True)
class _Asked:
    """The functions that a pool's connections may call, by schema, name and whether there is a result; and the lock that a thread
    holds while it asks.
    """

    functions: dict[tuple[str, str, bool], str | None] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


_asked: WeakKeyDictionary[sa.Pool, _Asked] = WeakKeyDictionary()


def begin(connection: sa.Connection, raw: Any) -> None:
    """BEGIN now, where psycopg would say it before the first statement. `raw`: what `driver.psycopg_of` has found.

    With 32 threads and one INSERT a job, the system switches between them 14 times a job by this, else 19. It also finds a
    connection that broke in the pool before the handler has done anything: then this raises what SQLAlchemy would.
    """
    if not _is_a_threads(connection, raw) or raw.autocommit:
        return
    command = _BEGIN.get(raw.isolation_level)
    if command is None or (raw.read_only, raw.deferrable) != (None, None):
        return  # psycopg knows what to say
    reason = b""
    with raw.lock, suppress(connection.dialect.loaded_dbapi.Error):
        if raw.pgconn.transaction_status == _IDLE:
            reason = raw.pgconn.exec_(command).error_message
    if reason:  # BEGIN itself cannot fail
        raw.close()
        error = connection.dialect.loaded_dbapi.OperationalError(reason.decode(errors="replace").strip())
        raise as_sqlalchemy(error, "BEGIN", {}, connection) from error


def command(connection: sa.Connection, raw: Any, change: Change, *, store: Store) -> str | None:
    """The text to `commit` this change with.

    None if the change says more than "done", if a listener or log must see each statement, or if this connection cannot do it.
    """
    if not change.plain or change.deletes or not _is_a_threads(connection, raw) or is_heard(connection, "commit"):
        return None
    if (raw.pgconn.transaction_status, raw.pgconn.pipeline_status) != (_IN_TRANSACTION, _NO_PIPELINE):
        return None
    result = "" if change.result is None else _literal(raw, change.result)
    if result is None:
        return None
    name = store.tables.completion if change.workflow is None else store.tables.member_completion
    function = _function(connection, store, name, recording=bool(result))
    if function is None:
        return None
    retain = "NULL" if change.retain is None else repr(float(change.retain))
    return f"SELECT {function}({change.id}, {change.claim_token}, {retain}{result}); COMMIT"


def _literal(raw: Any, result: str) -> str | None:
    """JSON text as one more argument of the function. None: the connection's encoding lacks one of its characters."""
    from psycopg.pq import Escaping

    encoding = raw.info.encoding
    try:
        literal = bytes(Escaping(raw.pgconn).escape_literal(result.encode(encoding))).decode(encoding)
    except UnicodeEncodeError:
        return None
    return f", {literal}::jsonb"


def commit(connection: sa.Connection, raw: Any, command: str) -> bool:
    """Complete the job and commit. False: its claim was lost, and the transaction is to be rolled back.

    The server stops at the first error, so without a completion there is no COMMIT. Raises what SQLAlchemy would.
    """
    dbapi = connection.dialect.loaded_dbapi
    try:
        with raw.lock:
            result = raw.pgconn.exec_(command.encode(raw.info.encoding))
        if raw.closed:  # the result has what came last; the server's reason, if it gave one, came before
            raise dbapi.OperationalError(raw.pgconn.error_message.decode(raw.info.encoding, "replace").strip())
        if result.error_message:
            raise dbapi.errors.error_from_result(result, raw.info.encoding)
    except dbapi.Error as error:
        if error.sqlstate == _LOST:
            return False
        if error.sqlstate in _GONE:
            _asked.pop(connection.engine.pool, None)
        raise as_sqlalchemy(error, command, {}, connection) from error
    try:
        connection.commit()  # for SQLAlchemy and the driver; the server has committed already
    except Exception as error:
        logger.warning("a handler's connection is closed, after the commit: %s", error)
        connection.invalidate()
    return True


def _function(connection: sa.Connection, store: Store, completion: str, *, recording: bool) -> str | None:
    """The function that completes a job of this store. None: it is not there, or this role may not call it.

    Asked once for each pool.
    """
    pool = connection.engine.pool
    asked = _asked.get(pool) or _asked.setdefault(pool, _Asked())
    key = store.schema_on(connection), completion, recording
    if key not in asked.functions:
        with asked.lock:
            if key not in asked.functions:
                schema, name = quote(key[0]), connection.dialect.identifier_preparer.quote
                function, table = f"{schema}.{name(completion)}", store.tables.job.__tablename__
                given = {"function": f"{function}{_PARAMETERS[recording]}", "table": f" {schema}.{name(table)} "}
                asked.functions[key] = function if connection.scalar(_MAY, given) else None
    return asked.functions[key]


def _is_a_threads(connection: sa.Connection, raw: Any) -> bool:
    """Whether `raw` is psycopg's connection for a thread.

    It is not with another driver, for a task of an event loop, or where a class that counts or traces statements, say, was put in
    place of psycopg's.
    """
    dialect = connection.dialect
    if raw is None or dialect.driver != "psycopg" or dialect.is_async:
        return False
    dbapi = dialect.loaded_dbapi
    return type(raw) is dbapi.Connection and raw.cursor_factory is dbapi.Cursor
