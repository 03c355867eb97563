"""The pressure that comes from outside of the sessions: standbys, and prepared transactions. On a server with a standby of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import Engine, create_engine

from sa_jobqueue.sql.workers import Pressure, read_pressure
from tests.faults.server import Guard, Server
from tests.support.folders import make_server_folder
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    """A primary, and a standby that follows it."""
    with ExitStack() as stack:
        folder = make_server_folder("sajq_pressure-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        guard = Guard()
        stack.callback(guard.close)
        settings = {
            "max_prepared_transactions": "2",
            "wal_receiver_status_interval": "1s",
            "hot_standby_feedback": "on",
        }
        primary = Server.make(folder / "primary", guard, settings)
        stack.callback(primary.remove)
        primary.start()
        primary.execute("CREATE TABLE written AS SELECT 1 AS n")
        standby = primary.copy(folder / "standby")
        stack.callback(standby.remove)
        yield primary, standby


@pytest.fixture
def primary(servers: tuple[Server, Server]) -> Server:
    return servers[0]


@pytest.fixture
def standby(servers: tuple[Server, Server]) -> Server:
    return servers[1]


@contextmanager
def engine_of(server: Server) -> Iterator[Engine]:
    engine = create_engine(server.url())
    yield engine
    engine.dispose()


def read(engine: Engine) -> Pressure:
    with engine.connect() as connection:
        return read_pressure(connection)


def test_a_standby_that_stands_still_lags_by_more_and_more_until_it_goes_on(primary: Server, standby: Server) -> None:
    """In seconds and in bytes, while the primary writes. One that has caught up is no pressure."""

    def lag() -> float:
        primary.execute("INSERT INTO written VALUES (1)")
        return read(engine).replication_seconds or 0.0

    with engine_of(primary) as engine:
        wait_until(lambda: lag() < 0.5 and read(engine).replication_bytes is not None)
        standby.execute("SELECT pg_wal_replay_pause()")
        try:
            wait_until(lambda: lag() > 1.5)
            assert (read(engine).replication_bytes or 0) > 0
        finally:
            standby.execute("SELECT pg_wal_replay_resume()")
        wait_until(lambda: lag() < 0.5)
        wait_until(lambda: read(engine).replication_bytes == 0)


def test_a_standby_is_read_without_error(standby: Server) -> None:
    """It writes no WAL of its own, and no other standby follows it."""
    with engine_of(standby) as engine:
        assert (read(engine).replication_seconds, read(engine).replication_bytes) == (None, None)


def test_a_snapshot_on_a_standby_reaches_back_on_the_primary(primary: Server, standby: Server) -> None:
    """With hot_standby_feedback; only as a number of transactions, because the primary is not told since when it is open."""
    with engine_of(primary) as engine, standby.connect() as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM written")

        def reaches_back() -> bool:
            primary.execute("INSERT INTO written VALUES (1)")
            return read(engine).snapshot_xids >= 5

        wait_until(reaches_back)
        assert read(engine).snapshot_seconds == 0.0


def test_a_prepared_transaction_is_an_old_snapshot_too(primary: Server) -> None:
    """It outlives its session, and a restart of the server."""
    with engine_of(primary) as engine:
        with primary.connect() as session:
            session.execute("BEGIN")
            session.execute("INSERT INTO written VALUES (1)")
            session.execute("PREPARE TRANSACTION 'forgotten'")
        try:
            primary.execute("INSERT INTO written VALUES (1)")
            found = read(engine)
            assert found.snapshot_seconds > 0
            assert found.snapshot_xids >= 1
        finally:
            primary.execute("ROLLBACK PREPARED 'forgotten'")


def test_a_role_without_rights_is_told_that_a_standby_is_hidden(primary: Server) -> None:
    """It might lag."""
    primary.execute("CREATE ROLE small LOGIN")
    engine = create_engine(primary.url().replace("postgres@", "small@"))
    try:
        blind = read(engine)
        primary.execute("GRANT pg_read_all_stats TO small")
        seeing = read(engine)
    finally:
        engine.dispose()
        primary.execute("DROP ROLE small")

    assert (blind.hidden, blind.replication_bytes) == (1, None)
    assert (seeing.hidden, seeing.replication_bytes is None) == (0, False)
