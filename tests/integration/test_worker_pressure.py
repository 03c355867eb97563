"""The pressure governor: workers claim less while the database is over a threshold, say so, and recover. The pressure is real."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, select, text

from sa_jobqueue import AsyncJobContext, Registry, enqueue, task
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.sql.workers import Pressure, read_pressure
from tests.support import pooler
from tests.support.databases import connect
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import add, drain, finished, worker_for, working

SLOTS = 8
READ = "sa_jobqueue.worker.maintenance.pressure.read_pressure"
CALM = Pressure(0.0, 0, 0, None, None, 0, 0, 0)


@pytest.fixture(autouse=True)
def read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for seconds between two readings."""
    monkeypatch.setattr("sa_jobqueue.worker.maintenance.pressure._EVERY", 0.05)


class Load:
    """Jobs without end, and the number of handlers that run at a time."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self.running = self.started = self.most = 0
        self.ids: list[int] = []

        @task(registry=registry, name="load")
        async def load(ctx: AsyncJobContext) -> None:
            self.running += 1
            self.started += 1
            self.ids.append(ctx.job_id)
            self.most = max(self.most, self.running)
            await asyncio.sleep(0.02)
            self.running -= 1

        self.task = load
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO sa_jobqueue.job (task) SELECT 'load' FROM generate_series(1, 6000)"))

    def most_of_next(self, jobs: int) -> int:
        """The most handlers that run at a time, while this number of jobs start."""
        self.most, until = self.running, self.started + jobs
        wait_until(lambda: self.started >= until)
        return self.most


@pytest.fixture
def load(engine: Engine, registry: Registry) -> Load:
    return Load(engine, registry)


@contextmanager
def snapshot(url: str) -> Iterator[None]:
    """A transaction that was forgotten."""
    with connect(url) as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM sa_jobqueue.job")
        yield


@contextmanager
def executing(url: str, statement: str) -> Iterator[None]:
    """A session that executes this all the while."""

    def execute() -> None:
        with suppress(psycopg.errors.QueryCanceled):
            session.execute(statement.encode())

    with connect(url) as session, connect(url) as other:
        thread = threading.Thread(target=execute)
        thread.start()
        try:
            active = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
            wait_until(lambda: other.execute(active, [session.info.backend_pid]).fetchone())
            yield
        finally:
            other.execute("SELECT pg_cancel_backend(%s)", [session.info.backend_pid])
            thread.join()


@contextmanager
def lock_wait(url: str) -> Iterator[None]:
    """Two sessions, one of which waits for the other."""
    with connect(url) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        with executing(url, "SELECT pg_advisory_lock_shared(7)"):
            yield


@contextmanager
def active_sessions(url: str) -> Iterator[None]:
    """Three of them."""
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(executing(url, "SELECT pg_sleep(600)"))
        yield


def row_says(engine: Engine) -> str | None:
    """What the worker's row says of the pressure."""
    with engine.connect() as connection:
        return connection.scalars(select(WorkerRow.pressure)).one()


@pytest.mark.parametrize(
    ("press", "threshold", "said"),
    [
        (snapshot, {"max_snapshot_age": 1.0}, "a transaction has been open for"),
        (lock_wait, {"max_lock_waits": 0}, "1 session waits for a lock (max_lock_waits is 0)"),
        (active_sessions, {"max_active_connections": 2}, "sessions are active (max_active_connections is 2)"),
    ],
)
def test_a_worker_claims_less_under_pressure_and_recovers(
    load: Load,
    engine: Engine,
    url: str,
    registry: Registry,
    caplog: pytest.LogCaptureFixture,
    press: Callable[[str], Any],
    threshold: dict[str, float],
    said: str,
) -> None:
    """Down to one job at a time, and back to all slots; one line of the log tells of either, and the worker's state and row do meanwhile."""
    caplog.set_level(logging.INFO, logger="sa_jobqueue")
    with working(url, registry, queues={"default": SLOTS}, **threshold) as worker:
        assert load.most_of_next(100) == SLOTS
        assert (worker.state().pressure, worker.state().share) == (None, 1.0)

        with press(pooler.direct(url)):
            wait_until(lambda: worker.state().share < 1 / SLOTS)
            wait_until(lambda: load.most_of_next(20) == 1)  # when those that were claimed before are through
            assert said in str(worker.state().pressure)
            wait_until(lambda: said in str(row_says(engine)))

        wait_until(lambda: worker.state().pressure is None)
        assert worker.state().share == 1.0
        wait_until(lambda: row_says(engine) is None)
        wait_until(lambda: load.most_of_next(20) == SLOTS)
    begun, recovered = (
        record for record in caplog.records if "under" in record.message and "pressure" in record.message
    )
    assert (begun.levelname, recovered.levelname) == ("WARNING", "INFO")
    assert said in begun.message
    assert "one job at a time of each queue" in begun.message
    assert "claiming for all slots again" in recovered.message


def test_a_worker_whose_thresholds_are_not_set_reads_no_pressure(
    load: Load, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And pays nothing for it."""

    def read(connection: Connection) -> Pressure:
        raise AssertionError

    monkeypatch.setattr(READ, read)
    with working(url, registry, queues={"default": SLOTS}), snapshot(pooler.direct(url)):
        assert load.most_of_next(200) == SLOTS


def test_a_standby_that_lags_is_pressure(
    load: Load, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it does."""
    lag = 9.0

    def read(connection: Connection) -> Pressure:
        return Pressure(0.0, 0, 0, lag, 1_000, 0, 0, 0)

    monkeypatch.setattr(READ, read)
    with working(url, registry, queues={"default": SLOTS}, max_replication_lag=5.0) as worker:
        wait_until(lambda: worker.state().share < 1 / SLOTS)
        wait_until(lambda: load.most_of_next(10) == 1)
        assert worker.state().pressure == "a standby is 9 s behind (max_replication_lag is 5)"
        lag = 1.0
        wait_until(lambda: load.most_of_next(20) == SLOTS)


def test_a_job_of_high_priority_is_the_next_one_also_under_pressure(
    load: Load, engine: Engine, url: str, registry: Registry
) -> None:
    """There are thousands before it."""
    with (
        snapshot(pooler.direct(url)),
        working(url, registry, queues={"default": SLOTS}, max_snapshot_age=0.1) as worker,
    ):
        wait_until(lambda: worker.state().share < 1 / SLOTS)
        wait_until(lambda: load.most_of_next(20) == 1)  # when those that were claimed before are through
        (urgent,) = add(engine, enqueue(load.task.options(priority=9)))
        before = len(load.ids)
        wait_until(lambda: urgent in load.ids)
        assert load.ids.index(urgent) - before < 100
        assert worker.state().pressure is not None


def test_draining_ends_under_pressure_that_does_not(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """One job after the other."""

    @task(registry=registry, name="one")
    async def one() -> None:
        await asyncio.sleep(0.01)

    ids = add(engine, *(enqueue(one.options(queue="a" if n % 2 else "b")) for n in range(200)))
    with snapshot(pooler.direct(url)):
        worker = drain(url, registry, queues={"a": 4, "b": 4}, max_snapshot_age=0.1)
        assert finished(engine, *ids)
    assert worker.counts["completed"] == 200
    assert "the database is under pressure" in caplog.text


async def test_workers_that_are_each_others_pressure_do_all_jobs(engine: Engine, url: str, registry: Registry) -> None:
    """Their own handlers are more sessions than they may be. None waits for the other to begin."""

    @task(registry=registry, name="busy")
    async def busy(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("SELECT pg_sleep(0.02)"))

    ids = add(engine, *(enqueue(busy) for _ in range(150)))
    workers = [worker_for(url, registry, max_active_connections=1, max_lock_waits=0) for _ in range(2)]
    serving = [asyncio.create_task(worker.serve(until_idle=True)) for worker in workers]
    await wait_until_async(lambda: any(worker.state().pressure for worker in workers))
    async with asyncio.timeout(60):
        await asyncio.gather(*serving)
    assert finished(engine, *ids)
    assert sum(worker.counts["completed"] for worker in workers) == 150


def test_what_cannot_be_read_holds_nothing_back_and_is_said_once(
    load: Load, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither does a worker stay held back that was when it could read."""
    caplog.set_level(logging.INFO, logger="sa_jobqueue")
    refused = threading.Event()
    failures = 0

    def read(connection: Connection) -> Pressure:
        nonlocal failures
        if not refused.is_set():
            return read_pressure(connection)
        failures += 1
        connection.execute(text("SELECT 1 FROM pg_catalog.what_is_not_there"))
        raise AssertionError

    monkeypatch.setattr(READ, read)
    with (
        snapshot(pooler.direct(url)),
        working(url, registry, queues={"default": SLOTS}, max_snapshot_age=0.1) as worker,
    ):
        wait_until(lambda: worker.state().share < 1 / SLOTS)
        refused.set()
        wait_until(lambda: failures >= 3)
        assert (worker.state().pressure, worker.state().share) == (None, 1.0)
        wait_until(lambda: load.most_of_next(20) == SLOTS)
        refused.clear()
        wait_until(lambda: worker.state().pressure)
    said = [record.message for record in caplog.records if "pressure on the database can" in record.message]
    assert len(said) == 2
    assert "cannot be read, and nothing is held back until it can" in said[0]
    assert "what_is_not_there" in said[0]
    assert "can be read again" in said[1]


def test_a_worker_that_loses_its_database_is_not_held_back_by_what_it_read_before(
    load: Load, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database that answers next may be another."""
    away = threading.Event()

    def read(connection: Connection) -> Pressure:
        if not away.is_set():
            return Pressure(0.0, 0, 5, None, None, 0, 0, 0)
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        raise AssertionError

    monkeypatch.setattr(READ, read)
    with working(url, registry, queues={"default": SLOTS}, max_lock_waits=0) as worker:
        wait_until(lambda: worker.state().share < 1 / SLOTS)
        away.set()
        wait_until(lambda: worker.state().pressure is None)
        wait_until(lambda: load.most_of_next(20) == SLOTS)


def test_a_role_that_may_not_see_what_others_do_is_told_once(
    load: Load, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the right that it lacks."""
    readings = 0

    def read(connection: Connection) -> Pressure:
        nonlocal readings
        readings += 1
        return Pressure(0.0, 0, 0, None, None, 0, 4, 3)

    monkeypatch.setattr(READ, read)
    with working(url, registry, max_lock_waits=0):
        wait_until(lambda: readings >= 3)
    (said,) = [record.message for record in caplog.records if "hidden" in record.message]
    assert said.startswith("what 3 other sessions or standbys do is hidden from this worker's role")
    assert "GRANT pg_read_all_stats" in said
