"""What the faults have found, each as small as it goes."""

from __future__ import annotations

import os
import random
import socket
import threading
from contextlib import ExitStack
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Row, create_engine, text

from sa_jobqueue import JobContext, Registry, RetryPolicy, task
from sa_jobqueue.worker.claiming.claimer import Claimer
from sa_jobqueue.worker.connections import listener
from sa_jobqueue.worker.connections.service import Connector
from tests.faults.proxy import bad_network
from tests.support.waiting import wait_until
from tests.support.working import services_of, working

LEASE = 2.0

# A connection that breaks in the midst of something is left to the garbage collector, still open: psycopg says so.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Held:
    """A handler that waits until the test lets it go; `begun` counts its starts."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = self.ended = 0

    def register(self) -> Registry:
        registry = Registry()

        @task(registry=registry, name="held")
        def held() -> None:
            self.begun += 1
            self.go.wait(60)
            self.ended += 1

        return registry


def add(engine: Engine, name: str, queue: str = "default") -> None:
    """Enqueue a job of this task, by name."""
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO sa_jobqueue.job (task, queue) VALUES (:task, :queue)"), {"task": name, "queue": queue}
        )


def job(engine: Engine) -> Row[tuple[object, ...]]:
    """The only job as it is now; `lease`: seconds until its lease ends."""
    with engine.connect() as connection:
        lease = "coalesce(extract(epoch FROM lease_expires_at - clock_timestamp())::float8, 0) AS lease"
        return connection.execute(
            text(f"SELECT status, claims, rescues, attempt, worker, {lease} FROM sa_jobqueue.job WHERE task <> 'old'")
        ).one()


def test_a_worker_whose_connection_was_silent_does_not_rescue_at_once(database_url: str) -> None:
    """All workers were cut off in silence, and one hears of the server again before the others: they are all alive.

    After an outage every lease looks expired at once, also after one that broke no connection.
    """
    engine, held = create_engine(database_url), Held()
    with ExitStack() as stack:
        near, near_url = stack.enter_context(bad_network(database_url))
        far, far_url = stack.enter_context(bad_network(database_url))
        stack.callback(held.go.set)
        stack.enter_context(working(near_url, held.register(), queues={"default": 1}, lease=LEASE))
        add(engine, "held")
        wait_until(lambda: held.begun)
        other = stack.enter_context(working(far_url, Registry(), queues={"other": 1}, lease=LEASE))
        healthy = threading.Event()
        healthy.wait(LEASE * 1.5)  # it leaves no trace: the other worker may rescue from now on
        near.go_silent()
        far.go_silent()
        wait_until(lambda: job(engine).lease < -0.2)
        far.go_on()
        # It looks every quarter of a lease; half of one later the other comes back, too.
        healthy.wait(LEASE / 2)
        near.go_on()
        wait_until(lambda: job(engine).lease > 0 or job(engine).rescues)
        assert (job(engine).claims, job(engine).rescues, other.serving) == (1, 0, True)
        held.go.set()
        wait_until(lambda: job(engine).status == "completed")
    assert held.begun == 1
    engine.dispose()


@pytest.mark.nightly
def test_a_half_open_connection_of_maintenance_costs_no_lease(database_url: str) -> None:
    """Nothing arrives on it any more, and it is not closed. The worker gives it up in time to renew on another one."""
    engine, held, lease = create_engine(database_url), Held(), 8.0
    with ExitStack() as stack:
        proxy, url = stack.enter_context(bad_network(database_url))
        stack.callback(held.go.set)
        # It prunes so often that the silence begins during pruning, which must not hold up the renewal either.
        stack.enter_context(working(url, held.register(), queues={"default": 1}, lease=lease, prune_every=0.1))
        stack.enter_context(working(database_url, Registry(), queues={"other": 1}, lease=lease))
        add(engine, "held")
        wait_until(lambda: held.begun)
        wait_until(lambda: any(link.maintains for link in proxy.links))
        proxy.go_silent(only=lambda link: link.maintains, newcomers=False)
        silent = monotonic()
        wait_until(lambda: monotonic() > silent + lease * 1.5)
        assert (job(engine).claims, job(engine).rescues) == (1, 0)
        assert job(engine).lease > 0
        held.go.set()
        wait_until(lambda: job(engine).status == "completed")
    engine.dispose()


def test_pruning_for_long_costs_no_lease(database_url: str) -> None:
    """However much there is to delete, and however slow that is, leases are renewed in between."""
    engine, held, lease = create_engine(database_url), Held(), 3.0
    with engine.begin() as connection:
        for statement in (
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END $$",
            "CREATE TRIGGER slow AFTER DELETE ON sa_jobqueue.job FOR EACH STATEMENT EXECUTE FUNCTION slow()",
            (
                "INSERT INTO sa_jobqueue.job (task, status, finished_at, purge_at) "
                "SELECT 'old', 'completed', now(), now() FROM generate_series(1, 30000)"
            ),
        ):
            connection.execute(text(statement))

    def old() -> int:
        with engine.connect() as connection:
            return connection.scalar(text("SELECT count(*) FROM sa_jobqueue.job WHERE task = 'old'")) or 0

    with ExitStack() as stack:
        stack.callback(held.go.set)
        stack.enter_context(working(database_url, Registry(), queues={"other": 1}, lease=lease, prune_every=3_600))
        stack.enter_context(working(database_url, held.register(), queues={"default": 1}, lease=lease, prune_every=6))
        add(engine, "held")
        wait_until(lambda: old() == 0)
        held.go.set()
        wait_until(lambda: job(engine).status == "completed")
        assert (job(engine).claims, job(engine).rescues) == (1, 0)
    engine.dispose()


def test_a_claim_that_a_failover_has_lost_writes_nothing(database_url: str) -> None:
    """The promoted server does not know of it, and gives the job, and the number of the claim, to another worker."""
    engine, first, second = create_engine(database_url), Held(), Held()
    with ExitStack() as stack:
        stack.callback(first.go.set)
        stack.callback(second.go.set)
        working_first = working(database_url, first.register(), queues={"default": 1}, lease=60.0)
        worker = stack.enter_context(working_first)
        add(engine, "held")
        wait_until(lambda: first.begun)
        with engine.begin() as connection:  # the row as the standby has it; the queue keeps the two workers apart
            connection.execute(
                text(
                    "UPDATE sa_jobqueue.job SET status = 'queued', claims = 0, attempt = 0, worker = NULL, claimed_at = NULL, "
                    "lease_expires_at = NULL, queue = 'other'"
                )
            )
        stack.enter_context(working(database_url, second.register(), queues={"other": 1}, lease=60.0))
        wait_until(lambda: second.begun)
        holder = job(engine).worker
        first.go.set()
        wait_until(lambda: sum(worker.counts.values()), message="the first worker's outcome")
        assert (job(engine).status, job(engine).worker) == ("running", holder)
    engine.dispose()


def test_a_job_on_a_connection_that_stays_half_open_ends_by_its_timeout(database_url: str) -> None:
    """It is not closed and nothing arrives: the handler's thread is stuck, and its job goes on elsewhere."""
    engine, registry = create_engine(database_url), Registry()
    inside, silent = threading.Event(), threading.Event()

    @task(registry=registry, name="write", timeout=1.0, retry=RetryPolicy(base=0.1, jitter=0))
    def write(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))
        inside.set()
        silent.wait(30)
        ctx.session.execute(text("SELECT 2"))

    with ExitStack() as stack:
        proxy, url = stack.enter_context(bad_network(database_url))
        stack.enter_context(working(url, registry, queues={"default": 4}, lease=LEASE))
        add(engine, "write")
        inside.wait(30)
        proxy.go_silent(only=lambda link: not link.service, newcomers=False)
        silent.set()
        wait_until(lambda: job(engine).status == "completed")
        assert job(engine).rescues == 0
        proxy.cut(reset=True)  # so that the stuck thread ends
    engine.dispose()


def test_a_worker_whose_service_connection_is_half_open_claims_again_soon(database_url: str) -> None:
    """However long the lease is: new connections work, and this one says nothing any more."""
    engine, held = create_engine(database_url), Held()
    held.go.set()
    with ExitStack() as stack:
        proxy, url = stack.enter_context(bad_network(database_url))
        stack.enter_context(working(url, held.register(), queues={"default": 1}, lease=60.0))
        add(engine, "held")
        wait_until(lambda: job(engine).status == "completed")
        proxy.go_silent(only=lambda link: link.claims, newcomers=False)
        add(engine, "held", queue="default")
        stack.callback(proxy.cut, reset=True)  # so that leaving need not wait for it
        wait_until(lambda: held.ended == 2)
    engine.dispose()


def port_of(connection: Connection) -> int:
    """The client's port, by which the proxy knows it."""
    raw: Any = connection.connection.dbapi_connection
    with socket.socket(fileno=os.dup(raw.pgconn.socket)) as own:
        return int(own.getsockname()[1])


def enrolled(engine: Engine) -> int:
    """How many workers have said that they are there."""
    with engine.connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM sa_jobqueue.worker")) or 0


@pytest.mark.parametrize("part", ["claimer", "maintenance"])
def test_a_connection_that_falls_silent_as_it_is_set_up_is_given_up(
    database_url: str, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """It has been opened, so that no timeout of connecting ends it any more."""
    engine, held = create_engine(database_url), Held()
    held.go.set()
    silenced, set_up = threading.Event(), Connector._set
    with bad_network(database_url) as (proxy, url):

        def fall_silent(connector: Connector, connection: Connection, *, local: bool) -> None:
            if threading.current_thread().name == f"sa-jobqueue {part}" and not silenced.is_set():
                mine = port_of(connection)
                proxy.go_silent(only=lambda link: link.port == mine, newcomers=False)
                silenced.set()
            set_up(connector, connection, local=local)

        monkeypatch.setattr(Connector, "_set", fall_silent)
        with working(url, held.register(), lease=LEASE):
            wait_until(silenced.is_set)
            add(engine, "held")
            wait_until(lambda: job(engine).status == "completed")
            wait_until(lambda: enrolled(engine) == 1)
    engine.dispose()


def test_a_listener_whose_connection_is_half_open_listens_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Wake-ups would stay away until the network says that it is broken."""
    monkeypatch.setattr(listener, "_PING", 0.1)
    monkeypatch.setattr(listener, "_SILENCE", 0.5)
    with bad_network(database_url) as (proxy, url), working(url, Registry()) as worker:
        listening = services_of(worker).listener
        assert listening is not None
        wait_until(lambda: listening.listening)
        proxy.go_silent(only=lambda link: link.listens, newcomers=False)
        wait_until(lambda: "listening again" in caplog.text)
        assert listening.listening


def test_no_pause_before_another_attempt_is_longer_than_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long outage a worker of its own has to be back within 5 s; the attempt itself takes time, too."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    service = object.__new__(Claimer)
    service._connection = SimpleNamespace(failures=1_000)  # type: ignore[assignment]
    pause = service._pause()
    assert pause is not None
    assert pause < 4.0
