"""A statement that the driver gets as text behaves as one that Core executes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, Integer, bindparam, cast, create_engine, event, literal_column, select, text
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateSchema

from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.sql.tables import Compiled
from sa_jobqueue.util.schema import SCHEMA
from sa_jobqueue.worker.connections.service import Connector
from tests.support import pooler
from tests.support.databases import driver_url
from tests.support.factory import completed, make_job, statuses
from tests.support.waiting import wait_until

DIVIDE = Compiled(text("SELECT 1 / :n"))
KILL = Compiled(text("SELECT pg_terminate_backend(pg_backend_pid())"))


def test_it_belongs_to_the_connections_transaction(engine: Engine) -> None:
    """It begins one if there is none; the caller commits or rolls back."""
    with engine.begin() as connection:
        id = make_job(connection)
    with engine.connect() as connection:
        assert [job.id for job in claimed(connection)] == [id]
        connection.rollback()
        assert statuses(connection) == {id: "queued"}
        assert [job.id for job in claimed(connection)] == [id]
        connection.commit()
    with engine.connect() as connection:
        assert statuses(connection) == {id: "running"}


def test_an_error_of_what_was_sent_is_the_senders_and_not_the_next_statements(engine: Engine, url: str) -> None:
    """The next statement on the connection waits for the answer, and succeeds; the sender gets the error when it asks for the answer."""
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler nothing is sent ahead")
    connector = Connector(engine, lease=60.0)
    with connector.connect() as connection:
        flight = Compiled(select(cast(bindparam("n"), Integer) / literal_column("0")), binary=True).send(
            connection, {"n": 1}
        )
        with connector.begin_one(connection):
            assert connection.scalar(text("SELECT 1")) == 1
        for _ in range(2):
            with pytest.raises(DataError, match="division by zero"):
                flight.land()


def test_what_was_sent_is_committed_before_its_sender_reads_the_answer(engine: Engine, url: str) -> None:
    """Otherwise a host that is suspended meanwhile would hold locked rows, which no other worker could rescue."""
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler nothing is sent ahead")
    with engine.begin() as connection:
        id = make_job(connection)
    with Connector(engine, lease=60.0).connect() as connection, engine.connect() as other:
        flight = default_store.send_exchange(
            connection, [], ClaimRequest(worker="me", queues={"default": 1}, lease=60.0)
        )
        wait_until(lambda: statuses(other) == {id: "running"})
        flight.land()
        assert [row[0] for row in flight.rows] == [id]


def test_a_cursor_class_of_the_applications_hears_of_the_statement(engine: Engine) -> None:
    """It executes the statement, for example to trace it; so nothing is sent ahead."""
    heard: list[Any] = []

    class Hearing(psycopg.Cursor[Any]):
        def execute(self, *args: Any, **options: Any) -> Any:
            heard.append(args[0])
            return super().execute(*args, **options)

    with Connector(engine, lease=60.0).connect() as connection:
        connection.connection.dbapi_connection.cursor_factory = Hearing  # type: ignore[union-attr]
        assert not DIVIDE.send(connection, {"n": 1}).ahead
    assert heard == ["SELECT 1 / %(n)s"]


def claimed(connection: Connection) -> list[ClaimedJob]:
    return default_store.claim(connection, ClaimRequest(worker="me", queues={"default": 1}, lease=60.0))


def test_an_error_of_the_servers_is_sqlalchemys(engine: Engine) -> None:
    """With the statement, its parameters and the driver's own error; the connection can be used again."""
    with engine.connect() as connection:
        assert DIVIDE.rows(connection, {"n": 1}) == [(1,)]
        with pytest.raises(DataError) as caught:
            DIVIDE.rows(connection, {"n": 0})
        assert isinstance(caught.value.orig, psycopg.errors.DivisionByZero)
        assert caught.value.statement == "SELECT 1 / %(n)s"
        assert caught.value.params == {"n": 0}
        assert not caught.value.connection_invalidated
        connection.rollback()
        assert DIVIDE.rows(connection, {"n": 1}) == [(1,)]


def test_a_connection_that_broke_is_not_used_again(engine: Engine) -> None:
    """It is invalidated, as after any other statement, and the pool makes a new one."""
    with engine.connect() as connection:
        with pytest.raises(OperationalError) as caught:
            KILL.rows(connection, {})
        assert caught.value.connection_invalidated
        assert connection.invalidated
    with engine.connect() as connection:
        assert DIVIDE.rows(connection, {"n": 1}) == [(1,)]


@pytest.mark.parametrize("where", ["an engine", "all engines"])
def test_listeners_of_the_engine_hear_the_statement(engine: Engine, where: str) -> None:
    """And what they make of it is executed."""
    heard: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        heard.append(statement)
        return statement.replace("1", "7"), parameters

    target = engine if where == "an engine" else Engine
    with listening(target, "before_cursor_execute", note, retval=True), engine.connect() as connection:
        assert DIVIDE.rows(connection, {"n": 1}) == [(7,)]
    assert heard == ["SELECT 1 / %(n)s"]
    with engine.connect() as connection:
        assert DIVIDE.rows(connection, {"n": 1}) == [(1,)]


@pytest.mark.parametrize(
    "name", ["before_execute", "after_execute", "after_cursor_execute", "do_execute", "handle_error"]
)
def test_every_event_of_a_statement_comes(engine: Engine, name: str) -> None:
    """An application may translate errors, or count what it sends."""
    heard: list[str] = []

    def note(*_: Any, **__: Any) -> None:
        heard.append(name)

    with listening(engine, name, note), engine.connect() as connection, suppress(DataError):
        DIVIDE.rows(connection, {"n": 0 if name == "handle_error" else 1})
    assert set(heard) == {name}


@contextmanager
def listening(target: Any, name: str, listener: Any, **options: Any) -> Iterator[None]:
    event.listen(target, name, listener, **options)
    try:
        yield
    finally:
        event.remove(target, name, listener)


def test_an_error_hides_its_parameters_where_the_engine_says_so(url: str) -> None:
    """They may be a customer's data."""
    engine = create_engine(url, hide_parameters=True)
    with engine.connect() as connection, pytest.raises(DataError) as caught:
        DIVIDE.rows(connection, {"n": 0})
    engine.dispose()
    assert "SQL parameters hidden" in str(caught.value)


def test_each_engine_has_its_own_default_schema(database_url: str, engine: Engine) -> None:
    """`{"sa_jobqueue": None}` means the schema that comes first in the search path, whichever that is for an engine."""
    with engine.begin() as connection:
        for schema in ("here", "there"):
            connection.execute(CreateSchema(schema))
            for table in ("job", "unique_key", "job_limit"):
                connection.execute(text(f"CREATE TABLE {schema}.{table} (LIKE sa_jobqueue.{table} INCLUDING ALL)"))
            # Of what a claim calls where it does not know the limits.
            body = "LANGUAGE plpgsql AS 'BEGIN RETURN 1 / 0 > 0; END'"
            failing = f"CREATE FUNCTION {schema}.limits_changed(bigint) RETURNS boolean {body}"
            connection.execute(text(failing))
    for schema in ("here", "there"):
        own = create_engine(
            pooler.direct(database_url),
            connect_args={"options": f"-csearch_path={schema}"},
            execution_options={"schema_translate_map": {SCHEMA: None}},
        )
        with own.begin() as connection:
            id = make_job(connection, task=schema)
            assert [(job.id, job.task) for job in claimed(connection)] == [(id, schema)]
            oid = connection.scalar(text(f"SELECT '{schema}.job'::regclass::oid"))
            assert default_store.channel(connection) == f"sa_jobqueue_{oid}"
        own.dispose()


@pytest.mark.parametrize("echo", [True, False])
def test_an_engine_that_echoes_says_it(url: str, caplog: pytest.LogCaptureFixture, echo: bool) -> None:
    """By `echo=True`, or by the level of SQLAlchemy's logger."""
    engine = create_engine(url, echo=echo)
    if not echo:
        caplog.set_level(logging.INFO, "sqlalchemy.engine")
    with engine.connect() as connection:
        DIVIDE.rows(connection, {"n": 1})
    engine.dispose()
    assert "SELECT 1 / %(n)s" in caplog.messages


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_it_runs_over_the_drivers_of_handlers_sessions(url: str, engine: Engine, driver: str) -> None:
    """An application's `AsyncEngine` may have another driver than the worker's own connections."""
    with engine.begin() as connection:
        id = make_job(connection, "running")
    asynchronous = create_async_engine(driver_url(url, driver))
    async with asynchronous.begin() as connection_:
        answer = await connection_.run_sync(default_store.apply_one, completed(id))
        assert answer is Answer.APPLIED
        again = await connection_.run_sync(default_store.apply_one, completed(id))
        assert again is Answer.LOST
    await asynchronous.dispose()
    with engine.connect() as connection:
        assert statuses(connection) == {id: "completed"}
