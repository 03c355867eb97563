"""A statement that the driver gets as text behaves as one that Core executes."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
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
