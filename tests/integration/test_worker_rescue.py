"""When jobs of dead workers are rescued, and when those of living ones must not be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from time import monotonic
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import Engine, text

from sa_jobqueue import JobStatus, Registry, enqueue, task
from sa_jobqueue.worker.maintenance.renew import Rescue
from tests.support.databases import Databases, connect, terminate_others
from tests.support.factory import make_job
from tests.support.lockstep import Step
from tests.support.nightly import nightly
from tests.support.waiting import wait_until
from tests.support.working import add_one, job_of, long_healthy, services_of, worker_for, working


def lost_job(engine: Engine, **columns: Any) -> int:
    """A job whose worker died, and whose lease has run out."""
    with engine.begin() as connection:
        return make_job(connection, "running", task="runs", lease_expires_at=timedelta(seconds=-1), **columns)


class Held:
    """A handler that goes on until the test lets it go. Counts its starts and its ends."""

    def __init__(self, registry: Registry) -> None:
        self.starts, self.go = 0, threading.Event()
        self.started = threading.Event()

        @task(registry=registry, name="held")
        def held() -> None:
            self.starts += 1
            self.started.set()
            self.go.wait(60)

        self.task = held


def looks(worker: Any) -> Callable[[int], bool]:
    """Whether maintenance has looked for lost jobs this often since."""
    chore = next(chore for chore in services_of(worker).maintenance.chores if isinstance(chore, Rescue))
    done, real = [0], chore.do

    @wraps(real)
    def do(connection: Any, turn: Any) -> bool:
        more = real(connection, turn)
        done[0] += 1
        return more

    chore.do = do  # type: ignore[method-assign]
    return lambda number: done[0] >= number


def test_workers_that_live_for_less_than_a_lease_rescue_all_the_same(
    engine: Engine, url: str, registry: Registry
) -> None:
    """One job that kills its process every now and then, or `max_jobs`, keeps no job from being rescued."""

    @task(registry=registry, name="runs")
    def runs() -> None: ...

    id, lease = lost_job(engine), 4.0
    began, lives = monotonic(), 0
    while job_of(engine, id).status != JobStatus.COMPLETED:
        assert monotonic() < began + 30 * lease
        with working(url, registry, lease=lease):
            lives, until = lives + 1, monotonic() + lease / 4
            wait_until(lambda until=until: monotonic() > until or job_of(engine, id).status == JobStatus.COMPLETED)  # type: ignore[misc]
    assert lives > 1
    assert job_of(engine, id).rescues == 1


@contextmanager
def locked(engine: Engine) -> Iterator[None]:
    """An index is built, which locks the table against all writes; reading goes on."""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '10s'"))
        connection.execute(text("LOCK TABLE sa_jobqueue.job IN SHARE MODE"))
        yield


def expired(engine: Engine, id: int) -> bool:
    with engine.connect() as connection:
        row = connection.execute(
            text("SELECT lease_expires_at < clock_timestamp() FROM sa_jobqueue.job WHERE id = :id"), {"id": id}
        )
        return bool(row.scalar())


@pytest.mark.parametrize("what", ["the database", *nightly("the table")])
def test_after_an_outage_longer_than_a_lease_nothing_that_lives_is_rescued(
    engine: Engine, databases: Databases, database_url: str, url: str, registry: Registry, what: str
) -> None:
    """Neither by a worker that was there before, nor by one that comes now. Each lease has run out; all are renewed."""
    held, lease = Held(registry), 1.0
    id = add_one(engine, enqueue(held.task))
    with working(url, registry, lease=lease) as holder, working(url, Registry(), lease=lease) as idle:
        assert held.started.wait(30)
        before = looks(idle)
        wait_until(lambda: before(6))  # for more than a lease
        engine.dispose()
        began = monotonic()
        with databases.away(url) if what == "the database" else locked(engine):
            wait_until(lambda: monotonic() > began + 2.5 * lease)
        with working(url, Registry(), lease=lease) as late:
            seen = [looks(worker) for worker in (idle, late)]
            wait_until(lambda: not expired(engine, id))
            wait_until(lambda: all(of(6) for of in seen))
            assert [worker.state().rescued for worker in (holder, idle, late)] == [0, 0, 0]
        held.go.set()
        wait_until(lambda: job_of(engine, id).status == JobStatus.COMPLETED)
    assert held.starts == 1
    assert job_of(engine, id).rescues == 0


async def test_a_worker_is_back_before_others_rescue_after_an_outage(engine: Engine, registry: Registry) -> None:
    """Other workers wait for a lease before they rescue. However long the outage was, the worker tries again within less than half of a lease."""
    step = Step(worker_for(engine, registry, lease=1.0))
    step._services.maintenance._failures = 10
    assert step._services.maintenance._pause() < 0.5
    step.close()


def step_clock(engine: Engine, seconds: float) -> None:
    """What the rows tell after the server's clock was set forward: all their times are that much older."""
    columns = {
        "job": ["run_at", "created_at", "claimed_at", "lease_expires_at", "finished_at", "purge_at"],
        "worker": ["started_at", "seen_at"],
        "uptime": ["since", "until"],
    }
    with engine.begin() as connection:
        for table, names in columns.items():
            if connection.scalar(text("SELECT to_regclass(:name)"), {"name": f"sa_jobqueue.{table}"}) is None:
                continue
            earlier = ", ".join(f"{name} = {name} - interval '{seconds} seconds'" for name in names)
            connection.execute(text(f"UPDATE sa_jobqueue.{table} SET {earlier}"))


def test_a_step_of_the_servers_clock_rescues_nothing_that_lives(engine: Engine, url: str, registry: Registry) -> None:
    """Set forward by five minutes, it lets every lease look expired. They are renewed, and none is rescued before."""
    held, lease = Held(registry), 2.0
    id = add_one(engine, enqueue(held.task))
    with working(url, registry, lease=lease), working(url, Registry(), lease=lease) as idle:
        assert held.started.wait(30)
        seen = looks(idle)
        wait_until(lambda: seen(6))  # for more than a lease
        step_clock(engine, 300)
        assert expired(engine, id)
        wait_until(lambda: not expired(engine, id))
        wait_until(lambda: seen(18))
        held.go.set()
        wait_until(lambda: job_of(engine, id).status == JobStatus.COMPLETED)
    assert held.starts == 1
    assert job_of(engine, id).rescues == 0


def test_a_connection_that_is_cut_again_and_again_does_not_keep_others_from_rescuing(
    engine: Engine, database_url: str, url: str, registry: Registry
) -> None:
    """The database is there; a new connection to it is no outage."""

    @task(registry=registry, name="runs")
    def runs() -> None: ...

    lease = 4.0
    with working(url, registry, lease=lease) as worker:
        id, seen, number = lost_job(engine), looks(worker), 1
        until, cut = monotonic() + 30 * lease, monotonic()
        while job_of(engine, id).status != JobStatus.COMPLETED:
            assert monotonic() < until
            # On a slow machine the next connection may take as long as that.
            if monotonic() > cut + lease / 4 and seen(number):
                engine.dispose()
                terminate_others(url)
                number, cut = number + 1, monotonic()
    assert number > 2
    assert job_of(engine, id).rescues == 1


# ---- settings of a role or a database

HOSTILE = {
    "idle_session_timeout": "1s",
    "transaction_timeout": "5s",  # with less, a machine under load could end the very transaction that lifts it
    "idle_in_transaction_session_timeout": "5s",
    "exit_on_error": "on",
    "array_nulls": "off",
    "client_encoding": "LATIN1",
    "extra_float_digits": "-15",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "TimeZone": "<+0345>-03:45",
    "default_transaction_isolation": "serializable",
    "enable_indexscan": "off",
    "enable_hashjoin": "off",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "client_min_messages": "debug5",
}
FIRST, MORE = list(HOSTILE)[:2], list(HOSTILE)[2:]


@contextmanager
def settings(url: str, values: Mapping[str, str]) -> Iterator[None]:
    """New sessions in this database begin with these, where its server has them."""
    with connect(url) as connection:
        name = sql.Identifier(connection.info.dbname)
        known = {one for (one,) in connection.execute("SELECT name FROM pg_settings").fetchall()}
        for setting in known & values.keys():
            set_to = sql.SQL("ALTER DATABASE {} SET {} = {}")
            connection.execute(set_to.format(name, sql.Identifier(setting), sql.Literal(values[setting])))
        yield
        connection.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(name))


@pytest.mark.parametrize("setting", ["all of them", *FIRST, *nightly(*MORE)])
def test_no_setting_of_the_database_keeps_jobs_from_being_rescued_and_run(
    engine: Engine, database_url: str, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    """Nor lets one the worker wait for its connections, that to listen among them."""
    arrived: list[str] = []

    @task(registry=registry, name="runs")
    def runs(what: str = "") -> None:
        arrived.append(what)

    euro = add_one(engine, enqueue(runs, "10 € 🐘"))
    lost = lost_job(engine)
    long_healthy(engine, 10.0)
    engine.dispose()
    with settings(url, HOSTILE if setting == "all of them" else {setting: HOSTILE[setting]}):
        with working(url, registry, lease=10.0) as worker:
            wait_until(lambda: worker.counts["completed"] == 2)
            seen = looks(worker)
            wait_until(lambda: seen(1))  # for longer than connections may be idle by these settings
        assert "not listening" not in caplog.text
        assert "waits for the database" not in caplog.text
    assert sorted(arrived) == ["", "10 € 🐘"]
    with connect(database_url) as connection:
        rows = connection.execute("SELECT id, rescues FROM sa_jobqueue.job WHERE status = 'completed'").fetchall()
    assert dict(rows) == {euro: 0, lost: 1}
