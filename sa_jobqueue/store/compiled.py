"""The statements that every job needs, compiled once and given to the driver as text.

Core compiles a statement once, too. But to execute it, it makes a context, a cursor and a result of its own, which takes
as long as the driver needs for the statement itself, and several times as long in a process that was idle: there it
was a fifth of the time from a producer's commit to the start of the handler (psycopg 3.3, November 2026).

>>> from sa_jobqueue.statements import claim_jobs
>>> claim = Compiled(claim_jobs(worker="", queues={}, lease=0))
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ClauseElement

__all__ = ["OWN_LISTENERS", "Compiled", "as_sqlalchemy", "is_heard"]

_sql_logger = logging.getLogger("sqlalchemy.engine.Engine")
_OF_STATEMENTS = ("before_cursor_execute", "after_cursor_execute", "before_execute", "after_execute")

#: Listeners of the worker's own to what handlers execute: nobody who wants to hear of our statements.
OWN_LISTENERS: list[Any] = []


class Compiled:
    """A statement that returns rows. Its parameters must be as the driver takes them: nothing of Core's converts them.

    Core executes it over another driver than psycopg (a session of the application's may use one), and where somebody
    wants to hear of statements, by events or by the log.

    `binary`: the rows come in the server's binary format, which both sides make faster. Only on a sync connection.
    """

    def __init__(self, statement: Executable, *, binary: bool = False) -> None:
        assert isinstance(statement, ClauseElement)
        self._statement: Any = statement
        self._options = {"binary": True} if binary else {}
        self._texts: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        """Execute it in the connection's transaction; the rows as the driver gives them.

        Raises what SQLAlchemy would.
        """
        dialect = connection.dialect
        if dialect.driver != "psycopg" or is_heard(connection):
            return connection.execute(self._statement, parameters).all()
        text, given = self._text(connection)
        if not connection.in_transaction():
            connection.begin()  # as Core would
        cursor = connection.connection.cursor(**self._options)
        try:
            cursor.execute(text, {**given, **parameters})
            rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return rows
        except dialect.loaded_dbapi.Error as error:
            raise as_sqlalchemy(error, text, parameters, connection) from error
        finally:
            cursor.close()

    def _text(self, connection: Connection) -> tuple[str, dict[str, Any]]:
        """The statement for this connection's schemas, and the parameters that have values in it already."""
        schemas = connection.get_execution_options().get("schema_translate_map") or {}
        # The name of a schema that is translated to None is the dialect's to say.
        key = (connection.dialect.default_schema_name, *schemas.items())
        if (text := self._texts.get(key)) is None:
            options = {"schema_translate_map": dict(schemas), "render_schema_translate": True} if schemas else {}
            compiled = self._statement.compile(dialect=connection.dialect, **options)
            # What is made new for each execution must be among the parameters that are given each time.
            fixed = {bind.key for bind in compiled.binds.values() if bind.callable is None}
            given = {name: value for name, value in compiled.params.items() if name in fixed}
            text = self._texts[key] = (str(compiled), given)
        return text


def is_heard(connection: Connection, *events: str) -> bool:
    """Whether somebody is to be told of the statements of this connection, of their errors, or of these `events`."""
    of_dialect = connection.dialect.dispatch
    return bool(
        (of_dialect.do_execute and list(of_dialect.do_execute) != OWN_LISTENERS)
        or of_dialect.handle_error
        or connection.engine.echo
        or _sql_logger.isEnabledFor(logging.INFO)
        or (_may_be_heard(connection) and _has_listeners(connection, *events))
    )


def _may_be_heard(connection: Connection) -> bool:
    """False where nobody ever listened, which Core notes for itself. To look at the listeners of a new connection takes 4 µs."""
    engine = connection.engine
    return bool(getattr(connection, "_has_events", True) or getattr(engine, "_has_events", True))


def _has_listeners(connection: Connection, *events: str) -> bool:
    return any(getattr(connection.dispatch, name) for name in (*_OF_STATEMENTS, *events))


def as_sqlalchemy(error: Exception, text: str, parameters: Mapping[str, Any], connection: Connection) -> BaseException:
    """The error that Core would raise. A broken connection is invalidated; Core would do so with its whole pool."""
    dialect: Dialect = connection.dialect
    broken = dialect.is_disconnect(error, connection.connection, None)  # type: ignore[arg-type]
    if broken:
        connection.invalidate(error)
    return DBAPIError.instance(
        text, dict(parameters), error, dialect.loaded_dbapi.Error,
        hide_parameters=connection.engine.hide_parameters, connection_invalidated=broken, dialect=dialect,
    )  # fmt: skip
