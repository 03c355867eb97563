"""The statements that every job needs, compiled once and given to the driver as text.

Core, too, compiles a statement once. But each execution makes a context, a cursor and a result of Core's. That takes as
long as the driver needs for the statement itself, and several times as long in a process that was idle: there it was a
fifth of the time from a producer's commit to the start of the handler (psycopg 3.3, November 2026).

>>> from sa_jobqueue.statements import claim_jobs
>>> claim = Compiled(claim_jobs(worker="", queues={}, lease=0))
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ClauseElement

from ..models import JobMixin, companions_of
from ..util.schema import schema_on
from ..util.sqlalchemy_internals import may_have_listeners
from .archived import is_archive_locked

_sql_logger = logging.getLogger("sqlalchemy.engine.Engine")
_OF_STATEMENTS = ("before_cursor_execute", "after_cursor_execute", "before_execute", "after_execute")

NO_PARAMETERS: Mapping[str, Any] = {}
#: The key of a `Flight` in a connection's `info`.
_FLIGHT = "sa_jobqueue flight"
#: psycopg's generator that executes a statement: it is private, and has been the same since psycopg 3.0. It stops where the driver
#: would wait for the server.
_STEPS = "_execute_gen"
#: The flag of `psycopg.waiting.Wait` for a socket that takes more bytes. The package must not import psycopg.
_WRITABLE = 2

#: Parameters as psycopg finds them in a statement.
_PLACES = re.compile(r"%(?:%|\(([^)]+)\)s)")

#: The worker's own listeners to statements of handlers. They need not hear of the queue's statements.
OWN_LISTENERS: list[Any] = []


class Compiled:
    """A statement that returns rows. Its parameters must be as the driver takes them, because Core does not convert them.

    Core executes it with another driver than psycopg (which a session of the application may use), and where a listener or the
    log wants to hear of statements.

    `binary`: the rows come in the server's binary format, which is faster on both sides. Only on a sync connection.
    """

    def __init__(self, statement: sa.Executable, *, binary: bool = False) -> None:
        assert isinstance(statement, ClauseElement)
        self._statement: Any = statement
        self._binary = binary
        self._texts: dict[tuple[Any, ...], _Text] = {}

    def rows(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        """Execute the statement in the connection's transaction. Returns the rows as the driver gives them.

        Raises the errors that SQLAlchemy would.
        """
        dialect = connection.dialect
        if dialect.driver != "psycopg" or is_heard(connection):
            return connection.execute(self._statement, parameters).all()
        if not connection.in_transaction():
            connection.begin()  # as Core would
        cursor, query = self._query(connection, parameters)
        psycopg: Any = dialect.loaded_dbapi
        try:
            cursor.execute(*query, **({"binary": True} if self._binary else {}))
            rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return rows
        except psycopg.Error as error:
            raise as_sqlalchemy(error, self._text(connection).named, parameters, connection) from error
        finally:
            cursor.close()

    def send(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> Flight:
        """Send it, as a transaction of its own, and do not wait for the answer. Nothing else can be sent before the answer has come.

        `connection`: a service connection in autocommit, with no transaction. It waits at once where a statement cannot be sent
        alone: over another driver, with a cursor class of the application's, and where Core is to execute it. Raises what SQLAlchemy
        would.
        """
        dialect = connection.dialect
        raw: Any = connection.connection.dbapi_connection
        psycopg: Any = dialect.loaded_dbapi
        known = dialect.driver == "psycopg" and raw.cursor_factory is psycopg.Cursor and hasattr(psycopg.Cursor, _STEPS)
        if not known or is_heard(connection):
            with connection.begin():
                return Flight(connection, rows=self.rows(connection, parameters))
        cursor, query = self._query(connection, parameters)
        flight = Flight(connection, cursor, text=self._text(connection).named, parameters=parameters)
        flight.start(*query)
        return flight

    def _query(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> tuple[Any, tuple[str, Any]]:
        """A cursor, and the statement with its parameters as the cursor takes them."""
        text, dialect = self._text(connection), connection.dialect
        values = {**text.given, **parameters}
        raw: Any = connection.connection.dbapi_connection
        psycopg: Any = dialect.loaded_dbapi
        if not dialect.is_async and raw.cursor_factory is psycopg.Cursor:
            # It takes the statement as it is. The other kind looks for the parameters' places each time in a text of more than 4096
            # characters (psycopg 3.3): 0.1 ms a claim.
            return psycopg.RawCursor(raw), (text.numbered, [values[name] for name in text.names])
        return connection.connection.cursor(), (text.named, values)

    def _text(self, connection: sa.Connection) -> _Text:
        """The statement for this connection's schemas."""
        schemas = connection.get_execution_options().get("schema_translate_map") or {}
        # A schema that is translated to None is the dialect's default schema.
        key = (connection.dialect.default_schema_name, *schemas.items())
        if (text := self._texts.get(key)) is None:
            options = {"schema_translate_map": dict(schemas), "render_schema_translate": True} if schemas else {}
            compiled = self._statement.compile(dialect=connection.dialect, **options)
            # A value that a callable makes for each execution must be among the parameters that are given each time.
            fixed = {bind.key for bind in compiled.binds.values() if bind.callable is None}
            given = {name: value for name, value in compiled.params.items() if name in fixed}
            text = self._texts[key] = _Text(str(compiled), *_numbered(str(compiled)), given)
        return text


class Flight:
    """A statement that was sent, and its answer, once that has come. A connection has one of them at a time."""

    def __init__(
        self,
        connection: sa.Connection,
        cursor: Any = None,
        *,
        text: str = "",
        parameters: Mapping[str, Any] = NO_PARAMETERS,
        rows: Sequence[tuple[Any, ...]] | None = None,
    ) -> None:
        self._connection, self._cursor, self._rows = connection, cursor, rows
        self._text, self._parameters = text, parameters
        self.ahead = False
        """Whether it was sent without a wait for the answer."""
        self._rest: Generator[Any, Any]
        self._error: BaseException | None = None

    def start(self, query: str, values: Any) -> None:
        """Send it. The server executes and commits it, whether or not the answer is read.

        In the driver's pipeline the server would keep the transaction open until the pipeline ends, under no time limit, and the
        connection would be unusable after an error of the commit (psycopg 3.3).
        """
        with self._as_sqlalchemy():
            steps = getattr(self._cursor, _STEPS)(query, values, binary=True)
            self._rest = _resumed(steps, self._cursor.connection.wait(_sent(steps)))
            self._connection.info[_FLIGHT], self.ahead = self, True

    def land(self) -> None:
        """Wait for the answer: the statement is committed then. Raises what SQLAlchemy would, each time that it is called."""
        if self._error is not None:
            raise self._error
        if self._rows is None:
            self._connection.info.pop(_FLIGHT, None)
            try:
                with self._as_sqlalchemy():
                    self._cursor.connection.wait(self._rest)
                    self._rows = self._cursor.fetchall()
                    self._cursor.close()
            except BaseException as error:
                self._error = error
                raise

    @property
    def rows(self) -> Sequence[tuple[Any, ...]]:
        """The rows as the driver gives them, after the flight has landed."""
        assert self._rows is not None
        return self._rows

    @contextmanager
    def _as_sqlalchemy(self) -> Generator[None]:
        try:
            yield
        except self._connection.dialect.loaded_dbapi.Error as error:
            raise as_sqlalchemy(error, self._text, self._parameters, self._connection) from error


def _sent(steps: Generator[Any, Any]) -> Generator[Any, Any, Any]:
    """A driver's generator up to where all is sent. Returns what that waits for then."""
    wanted = next(steps)
    while wanted & _WRITABLE:
        wanted = steps.send((yield wanted))
    return wanted


def _resumed(steps: Generator[Any, Any], wanted: Any) -> Generator[Any, Any]:
    """The rest of a driver's generator, which is waiting for `wanted`."""
    with suppress(StopIteration):
        while True:
            wanted = steps.send((yield wanted))


def land(connection: sa.Connection) -> None:
    """Wait for the answer to what was sent on this connection, if that has not come. An error is for the sender, who lands it, too."""
    if not connection.closed and not connection.invalidated and (flight := connection.info.get(_FLIGHT)) is not None:
        with suppress(DBAPIError):
            flight.land()


class _Text(NamedTuple):
    """A statement as the driver takes it: with the parameters by name, and by number in the order of `names`; and the values with
    which it was built.
    """

    named: str
    numbered: str
    names: list[str]
    given: dict[str, Any]


def _numbered(text: str) -> tuple[str, list[str]]:
    """With `$1` in place of `%(name)s`, and with the names in that order.

    >>> _numbered("SELECT %(a)s %% %(b)s + %(a)s")
    ('SELECT $1 % $2 + $1', ['a', 'b'])
    """
    numbers: dict[str, int] = {}

    def place(found: re.Match[str]) -> str:
        name = found[1]
        return "%" if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    return _PLACES.sub(place, text), list(numbers)


def is_heard(connection: sa.Connection, *events: str) -> bool:
    """Whether a listener, `echo` or the log wants this connection's statements, errors or `events`, so that Core must
    execute them.
    """
    of_dialect = connection.dialect.dispatch
    return bool(
        (of_dialect.do_execute and list(of_dialect.do_execute) != OWN_LISTENERS)
        or of_dialect.handle_error
        or connection.engine.echo
        or _sql_logger.isEnabledFor(logging.INFO)
        or (may_have_listeners(connection) and _has_listeners(connection, *events))
    )


def _has_listeners(connection: sa.Connection, *events: str) -> bool:
    return any(getattr(connection.dispatch, name) for name in (*_OF_STATEMENTS, *events))


def as_sqlalchemy(
    error: Exception, text: str, parameters: Mapping[str, Any], connection: sa.Connection
) -> BaseException:
    """The error that Core would raise. A broken connection is invalidated; Core would invalidate its whole pool."""
    dialect: sa.Dialect = connection.dialect
    broken = dialect.is_disconnect(error, connection.connection, None)  # type: ignore[arg-type]
    if broken:
        connection.invalidate(error)
    return DBAPIError.instance(
        text, dict(parameters), error, dialect.loaded_dbapi.Error,
        hide_parameters=connection.engine.hide_parameters, connection_invalidated=broken, dialect=dialect,
    )  # fmt: skip


# ---- The base class of all parts of a store.


class StorePart:
    """A part of `Store`: statements about one job table and the other tables of its schema.

    The rows that a store writes refer to its own jobs only: jobs of other stores may have the same ids.
    """

    def __init__(self, job: type[JobMixin]) -> None:
        self.job, self.tables = job, companions_of(job)

    @property
    def completion(self) -> str:
        """The SQL function by which a handler's transaction completes its job. Its text names the job table, so each has its own."""
        return f"complete_{self.job.__tablename__}"

    @property
    def member_completion(self) -> str:
        """The SQL function that completes a member of a workflow, and appends the end to the workflow's events."""
        name = self.job.__tablename__
        return "complete_member" if name == "job" else f"complete_member_{name}"

    @property
    def schema(self) -> str:
        """The schema of the tables, as they are mapped."""
        return self.job.__table__.schema or ""

    def schema_on(self, connection: sa.Connection) -> str:
        """The schema where this connection finds the tables."""
        return schema_on(connection, self.job.__table__)

    def is_archive_locked(self, connection: sa.Connection) -> bool:
        """Whether no job at all can be moved to the archive just now."""
        return bool(connection.scalar(is_archive_locked(schema=self.schema_on(connection))))
