"""What presses on a database: each part of it made by real sessions, and read beside them."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, create_engine, make_url

from sa_jobqueue.sql.workers import Pressure, read_pressure
from sa_jobqueue.worker.connections.service import APPLICATION
from tests.support import pooler
from tests.support.databases import connect
from tests.support.waiting import wait_until


@pytest.fixture
def database_url(database_url: str) -> str:
    """The URL past a pooler, which would keep sessions that a test has closed; of a database in which no other session is busy."""
    return pooler.direct(database_url)


def read(engine: Engine) -> Pressure:
    with engine.connect() as connection:
        return read_pressure(connection)


@contextmanager
def busy(url: str, **options: str) -> Iterator[None]:
    """A session that executes one statement all the while."""
    with connect(url) as holder, connect(make_url(url).update_query_dict(options).render_as_string(False)) as session:
        holder.execute("SELECT pg_advisory_lock(7)")
        pid = session.info.backend_pid
        thread = threading.Thread(target=session.execute, args=["SELECT pg_advisory_lock_shared(7)"])
        thread.start()
        is_busy = "SELECT state = 'active' AND wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: holder.execute(is_busy, [pid]).fetchone() == (True,))
        try:
            yield
        finally:
            holder.execute("SELECT pg_advisory_unlock(7)")
            thread.join()


def test_an_idle_database_is_under_no_pressure(database_url: str, engine: Engine) -> None:
    """The session that reads counts nowhere; of standbys nothing is known where there is none."""
    pressure = read(engine)

    assert pressure.snapshot_seconds < 5  # another connection may be beginning
    assert pressure.snapshot_xids == 0
    assert (pressure.lock_waits, pressure.active, pressure.hidden) == (0, 0, 0)
    assert (pressure.replication_seconds, pressure.replication_bytes) == (None, None)


@pytest.mark.parametrize("statement", ["SELECT count(*) FROM sa_jobqueue.job", "SELECT pg_current_xact_id()"])
def test_the_oldest_snapshot_is_that_of_the_transaction_that_is_open_longest(
    database_url: str, engine: Engine, statement: str
) -> None:
    """Whether it has a snapshot or only a transaction id, and how many transactions began since then."""
    with connect(database_url) as old, connect(database_url) as other:
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute(statement.encode())
        for _ in range(5):
            other.execute("SELECT pg_current_xact_id()")
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1 FROM sa_jobqueue.job")
        since = age_of(other, old)

        pressure = read(engine)
        old.execute("ROLLBACK")
        later = read(engine)

        assert pressure.snapshot_seconds >= since
        assert pressure.snapshot_xids >= 5
        assert 0 < later.snapshot_seconds <= age_of(other, other)


def age_of(asked: psycopg.Connection, session: psycopg.Connection) -> float:
    """The age of the transaction of `session`, in seconds."""
    age = "SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8 FROM pg_stat_activity WHERE pid = %s"
    row: Any = asked.execute(age, [session.info.backend_pid]).fetchone()
    return float(row[0])


def test_a_transaction_that_holds_nothing_is_no_old_snapshot(database_url: str, engine: Engine) -> None:
    """At READ COMMITTED, between two statements that only read, VACUUM may remove what it likes."""
    with connect(database_url) as session:
        session.execute("BEGIN")
        session.execute("SELECT count(*) FROM sa_jobqueue.job")

        assert read(engine).snapshot_seconds == 0.0


def test_a_snapshot_in_another_database_holds_back_no_vacuum_here(
    database_url: str, empty_database_url: str, engine: Engine
) -> None:
    """Its session counts as a connection of the server, and as nothing else."""
    before = read(engine)
    with connect(pooler.direct(empty_database_url)) as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT pg_current_xact_id()")
        pressure = read(engine)

    assert pressure.snapshot_seconds == 0.0
    assert pressure.connections >= 1
    assert before.active == pressure.active == 0


def test_sessions_that_wait_for_locks_are_counted_and_so_are_busy_ones(database_url: str, engine: Engine) -> None:
    """A session that waits for a lock executes a statement, too."""
    with busy(database_url):
        pressure = read(engine)
    assert (pressure.lock_waits, pressure.active) == (1, 1)


@pytest.mark.parametrize("name", [APPLICATION, "sa-jobqueue 7d4f0f4e-0000-0000-0000-000000000000"])
def test_the_workers_own_connections_are_no_pressure(database_url: str, engine: Engine, name: str) -> None:
    """All of them wait where the table is locked: then each worker would hold back for the others."""
    with busy(database_url, application_name=name):
        pressure = read(engine)
    assert (pressure.lock_waits, pressure.active) == (0, 0)


def vacuum(session: psycopg.Connection) -> None:
    with suppress(psycopg.errors.QueryCanceled):
        session.execute("VACUUM public.large")


def test_a_vacuum_that_runs_holds_back_no_other(database_url: str, engine: Engine) -> None:
    """It has a snapshot, and may run for hours."""
    with connect(database_url) as owner, connect(database_url) as session:
        owner.execute("CREATE TABLE public.large AS SELECT generate_series(1, 50000) AS n")
        owner.execute("DELETE FROM public.large")
        session.execute(
            "SELECT set_config('vacuum_cost_delay', '100ms', false), set_config('vacuum_cost_limit', '1', false)"
        )
        pid = session.info.backend_pid
        thread = threading.Thread(target=vacuum, args=[session])
        thread.start()
        has_begun = "SELECT backend_xmin IS NOT NULL FROM pg_stat_activity JOIN pg_stat_progress_vacuum USING (pid) WHERE pid = %s"
        wait_until(lambda: owner.execute(has_begun, [pid]).fetchone() == (True,))

        pressure = read(engine)

        assert owner.execute(has_begun, [pid]).fetchone() == (True,)  # it still does
        assert (pressure.snapshot_seconds, pressure.active) == (0.0, 1)
        owner.execute("SELECT pg_cancel_backend(%s)", [pid])
        thread.join()


class Role:
    """A role that may log in, and nothing else."""

    def __init__(self, url: str) -> None:
        self.name = f"role {secrets.token_hex(6)}"
        password = secrets.token_hex(16)
        with connect(url) as connection:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(self.name), password))
        self.url = make_url(url).set(username=self.name, password=password).render_as_string(hide_password=False)


@pytest.fixture
def role(database_url: str) -> Iterator[Role]:
    role = Role(database_url)
    yield role
    with connect(database_url) as connection:
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role.name)))


def test_a_role_without_rights_is_told_how_much_is_hidden(database_url: str, role: Role) -> None:
    """It knows how far back snapshots reach, and not since when; with one GRANT it sees all."""
    own: Any = create_engine(role.url)
    with connect(database_url) as old, busy(database_url):
        old.execute("BEGIN")
        old.execute("SELECT pg_current_xact_id()")
        with connect(database_url) as other:
            other.execute("SELECT pg_current_xact_id()")
        blind = read(own)
        with connect(database_url) as owner:
            owner.execute(sql.SQL("GRANT pg_read_all_stats TO {}").format(sql.Identifier(role.name)))
        seeing = read(own)
    own.dispose()

    assert (blind.snapshot_seconds, blind.lock_waits, blind.active) == (0.0, 0, 0)
    assert blind.snapshot_xids >= 1
    assert blind.hidden >= 3
    assert seeing.snapshot_seconds > 0
    assert (seeing.lock_waits, seeing.active, seeing.hidden) == (1, 1, 0)
    assert seeing.connections >= blind.hidden
