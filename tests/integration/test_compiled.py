"""A statement that the driver gets as text behaves as one that Core executes."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from sa_jobqueue import operations
from sa_jobqueue.compiled import Compiled
from sa_jobqueue.operations import Answer
from tests.support.databases import driver_url
from tests.support.factory import completed, make_job, statuses

DIVIDE = Compiled(text("SELECT 1 / :n"))
KILL = Compiled(text("SELECT pg_terminate_backend(pg_backend_pid())"))


def test_it_belongs_to_the_connections_transaction(engine: Engine) -> None:
    """Which it begins, if there is none; commit and rollback are the caller's."""
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


def claimed(connection: Connection) -> list[operations.ClaimedJob]:
    return operations.claim(connection, worker="me", queues={"default": 1}, lease=60.0)


def test_an_error_of_the_servers_is_sqlalchemys(engine: Engine) -> None:
    """With the statement, its parameters and the driver's own error; the connection is as good as before."""
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
def test_whoever_listens_hears_of_it(engine: Engine, where: str) -> None:
    """And what they make of it is executed."""
    heard: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        heard.append(statement)
        return statement.replace("1", "7"), parameters

    target = engine if where == "an engine" else Engine
    event.listen(target, "before_cursor_execute", note, retval=True)
    try:
        with engine.connect() as connection:
            assert DIVIDE.rows(connection, {"n": 1}) == [(7,)]
    finally:
        event.remove(target, "before_cursor_execute", note)
    assert heard == ["SELECT 1 / %(n)s"]
    with engine.connect() as connection:
        assert DIVIDE.rows(connection, {"n": 1}) == [(1,)]


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
        answer = await connection_.run_sync(operations.apply_one, completed(id))
        assert answer is Answer.APPLIED
        again = await connection_.run_sync(operations.apply_one, completed(id))
        assert again is Answer.LOST
    await asynchronous.dispose()
    with engine.connect() as connection:
        assert statuses(connection) == {id: "completed"}
