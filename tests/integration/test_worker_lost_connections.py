"""What a worker does when its connection is lost: with a statement that may have taken effect, with its claims, with the pool."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, func, select, text
from sqlalchemy.exc import OperationalError

from sa_jobqueue import AsyncJobContext, Job, JobContext, JobStatus, Registry, Retry, RetryPolicy, Snooze, enqueue, task
from sa_jobqueue.sql.store import Store, default_store
from sa_jobqueue.worker.connections.service import Connector
from sa_jobqueue.worker.maintenance.renew import Renewal, Rescue
from sa_jobqueue.worker.running import transaction as libpq
from sa_jobqueue.worker.running.run import Stop
from tests.support import pooler
from tests.support.databases import cut_line
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, assert_nothing_leaked, finished, job_of, services_of, working

NEVER = RetryPolicy(no_retry=(BaseException,))


def sleeping(engine: Engine) -> bool:
    """Whether a session of this database sleeps: other tests have databases of their own on the server."""
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    with engine.connect() as connection:
        return bool(connection.scalar(text(asleep)))


class Lost:
    """Breaks the next service transaction after its COMMIT was done, as if the answer had been lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, when: Any) -> None:
        self.done = threading.Event()

        class Broken:
            def __init__(self, connection: Any, transaction: Any) -> None:
                self.connection, self.transaction = connection, transaction

            def __enter__(self) -> Any:
                return self.transaction.__enter__()

            def __exit__(broken, *error: object) -> Any:
                said = broken.transaction.__exit__(*error)
                serves = threading.current_thread().name == "sa-jobqueue claimer"
                if error[0] is None and serves and not self.done.is_set() and when():
                    self.done.set()
                    raise OperationalError("COMMIT", {}, Exception("the answer was lost"), connection_invalidated=True)
                return said

        def breaking(begin: Any) -> Any:
            return lambda own, connection: Broken(connection, begin(own, connection))

        for name in ("begin", "begin_one"):
            monkeypatch.setattr(Connector, name, breaking(getattr(Connector, name)))


@pytest.mark.parametrize("busy_with", ["completed", "running"])
def test_a_statement_that_outlives_its_connection_does_not_take_effect_unnoticed(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, busy_with: str
) -> None:
    """The connection breaks while the server writes an outcome, or claims beside it. It could take effect after
    the worker has looked what became of it: a claimed job that no worker knows of, an outcome that comes too late.
    """
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler the connection that breaks is not the server's")
    begun, release = threading.Event(), threading.Event()

    @task(registry=registry, name="waits")
    def waits() -> None:
        begun.set()
        release.wait(30)

    @task(registry=registry, name="next")
    def next_() -> None: ...

    (first,) = add(engine, enqueue("waits"))
    with working(url, registry, queues={"default": 1}, buffer=0, lease=60) as worker:
        assert begun.wait(30)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE slow (yes bool)"))
            connection.execute(text("INSERT INTO slow VALUES (true)"))
            connection.execute(
                text(
                    "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                    "PERFORM pg_sleep(5) FROM slow; RETURN new; END $$"
                )
            )
            connection.execute(
                text(
                    "CREATE TRIGGER dawdle BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW "
                    f"WHEN (new.status = '{busy_with}') EXECUTE FUNCTION dawdle()"
                )
            )
        (second,) = add(engine, enqueue("next"))
        release.set()
        wait_until(lambda: sleeping(engine))
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM slow"))  # it sleeps once
        cut(services_of(worker).claimer._connection.current)
        wait_until(lambda: finished(engine, first) and finished(engine, second))
    with engine.connect() as connection:
        rows = connection.execute(select(Job.status, Job.claims, Job.rescues).order_by(Job.id)).all()
    assert rows == [("completed", 1, 0)] * 2
    assert (worker.counts["completed"], worker.counts["lost"]) == (2, 0)


def test_a_job_given_back_and_claimed_again_in_a_lost_commit_is_not_forgotten(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old claim is known here and its new one is not: the worker compares both, and the job does not wait for its lease to run out."""
    runs: list[int] = []

    @task(registry=registry, name="runs")
    async def handler(ctx: AsyncJobContext) -> Snooze | None:
        runs.append(ctx.job_id)
        return Snooze(0) if len(runs) == 1 else None

    lost = Lost(monkeypatch, lambda: bool(runs) and claimed_twice())

    def claimed_twice() -> bool:
        with engine.connect() as connection:
            return bool(connection.scalar(select(Job.claims).where(Job.status == JobStatus.RUNNING)) == 2)

    (id,) = add(engine, enqueue("runs"))
    # One slot: it is claimed for in the transaction that writes what became of its last job, or right after it.
    with working(url, registry, queues={"default": 1}, buffer=0, lease=60) as worker:
        wait_until(lambda: finished(engine, id))
        assert_nothing_leaked(engine, worker)
    assert lost.done.is_set()
    job = job_of(engine, id)
    assert (job.status, job.rescues, job.attempt, job.claims) == ("completed", 0, 1, 3)


def test_what_was_claimed_as_the_worker_leaves_goes_back_though_the_connection_breaks(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the claim's commit, before the worker knows of the jobs: they do not wait for their leases to run out."""
    fetching, leaving = threading.Event(), threading.Event()

    @task(registry=registry, name="large")
    async def large(text: str) -> None: ...

    def fetch(connection: Connection, *_: Any, **__: Any) -> None:
        fetching.set()
        assert leaving.wait(30)
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    monkeypatch.setattr(default_store, "fetch_args", fetch)
    (id,) = add(engine, enqueue("large", text="a" * 100_000))
    with working(url, registry, lease=60) as worker:
        assert fetching.wait(30)
        services = services_of(worker)
        worker.stop()
        wait_until(lambda: services.claimer._ending)
        leaving.set()
    job = job_of(engine, id)
    assert (job.status, job.attempt, job.claims) == ("queued", 0, 1)


def test_leaving_does_not_fail_for_want_of_a_connection(engine: Engine, url: str, registry: Registry) -> None:
    """Handlers that never end may hold every connection of the application's pool; the worker leaves all the same."""
    entered, gate = threading.Event(), threading.Event()

    @task(registry=registry, name="holds")
    def holds(ctx: JobContext) -> None:
        ctx.session.execute(select(1))
        entered.set()
        gate.wait(30)

    small = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    (id,) = add(engine, enqueue("holds"))
    try:
        with working(small, registry, grace=0, listen=False):
            assert entered.wait(30)
        assert job_of(engine, id).status == "queued"
    finally:
        gate.set()
        wait_until(lambda: not small.pool.checkedout())  # type: ignore[attr-defined]
        small.dispose()


def test_a_lost_connection_is_replaced_by_a_new_one_not_by_an_old_one_of_the_pool(
    url: str, engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network that forgot the first has forgotten that one, too, and `pool_pre_ping` would ask it without a deadline. What
    handlers have is left to them.
    """
    held, gate, asked = threading.Event(), threading.Event(), list[str]()

    @task(registry=registry, name="quick")
    def quick(ctx: JobContext) -> None:
        ctx.session.execute(select(1))

    @task(registry=registry, name="holds")
    def holds(ctx: JobContext) -> None:
        ctx.session.execute(select(1))
        held.set()
        assert gate.wait(30)
        ctx.session.execute(select(1))

    def ping(_: object) -> bool:
        asked.append(threading.current_thread().name)
        return True

    own = create_engine(url, pool_pre_ping=True, **pooler.engine_options(url))
    monkeypatch.setattr(own.dialect, "do_ping", ping)
    with working(own, registry, listen=False, lease=60) as worker:
        ids = add(engine, enqueue("holds"))
        assert held.wait(30)
        ids += add(engine, enqueue("quick"))
        wait_until(lambda: finished(engine, ids[1]) and own.pool.checkedin())  # type: ignore[attr-defined]
        asked.clear()
        cut(services_of(worker).claimer._connection.current)
        ids += add(engine, enqueue("quick"))
        wait_until(lambda: finished(engine, ids[2]))
        gate.set()
        wait_until(lambda: finished(engine, *ids))
    own.dispose()
    assert "sa-jobqueue claimer" not in asked
    assert {(job.status, job.claims) for job in (job_of(engine, id) for id in ids)} == {(JobStatus.COMPLETED, 1)}


def cut(connection: Connection | None) -> None:
    assert connection is not None
    cut_line(connection.connection.dbapi_connection)


@pytest.mark.parametrize("outcome", ["done", "deleted", "retried", "snoozed", "failed"])
def test_an_outcome_whose_commit_had_no_answer_is_counted_as_what_it_was(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """Its write is tried again, and finds its claim over: by itself. That is not an outcome that came too late."""
    ran: list[int] = []

    def act(ctx: JobContext) -> Snooze | None:
        ran.append(ctx.job_id)
        if outcome in {"retried", "failed"}:
            raise ValueError("no")
        return Snooze(3_600) if outcome == "snoozed" else None

    retain, attempts = (0 if outcome == "deleted" else 600), (1 if outcome == "failed" else 5)
    declared = task(registry=registry, name="acts", retain=retain, max_attempts=attempts, retry=RetryPolicy(base=3_600))
    acts = declared(act)
    add(engine, *(enqueue(acts) for _ in range(3)))

    def written() -> bool:
        with engine.connect() as connection:
            return len(ran) == 3 and not connection.scalar(select(func.count()).where(Job.status == "running"))

    lost = Lost(monkeypatch, written)
    with working(url, registry) as worker:
        assert lost.done.wait(30)
        wait_until(lambda: not services_of(worker).runs.all() and not worker.state().unwritten)
    expected = {"done": "completed", "deleted": "completed"}.get(outcome, outcome)
    assert worker.counts == {expected: 3}


@pytest.mark.parametrize("outcome", ["deleted", "retried"])
def test_an_outcome_that_an_outage_kept_back_is_lost_if_another_worker_was_faster(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """The row is gone or queued, as this worker would have left it; but the lease had run out, and the other worker counts the job."""
    down = threading.Event()
    down.set()
    tries: list[int] = []

    def cut_off(call: Any) -> Any:
        def broken(store: Store, connection: Connection, changes: Any, *others: Any) -> Any:
            if changes and down.is_set():
                tries.append(1)
                raise OperationalError("BEGIN", {}, Exception("no route to host"), connection_invalidated=True)
            return call(store, connection, changes, *others)

        return broken

    for write in ("exchange", "send_exchange", "apply"):
        monkeypatch.setattr(Store, write, cut_off(getattr(Store, write)))
    for chore in (Renewal, Rescue):
        monkeypatch.setattr(chore, "do", lambda *_: False)

    @task(registry=registry, name="acts", retain=0)
    def acts() -> None:
        if outcome == "retried":
            raise Retry(3_600)

    add(engine, enqueue(acts))
    with working(url, registry, lease=0.5) as worker:
        wait_until(lambda: len(tries) > 1)
        with engine.connect() as connection:
            lapsed = select(func.count()).where(Job.lease_expires_at < func.clock_timestamp())
            wait_until(lambda: connection.scalar(lapsed) == 1)
            if outcome == "deleted":
                connection.execute(delete(Job))
            else:
                to_queue = "status = 'queued', lease_expires_at = NULL, run_at = now() + interval '1 hour', rescues = 1"
                connection.execute(text(f"UPDATE sa_jobqueue.job SET {to_queue}"))
            connection.commit()
        down.clear()
        wait_until(lambda: sum(worker.counts.values()) == 1)
    assert worker.counts == {"lost": 1}


@pytest.mark.parametrize("told", ["nothing", "that its claim is lost", "nothing of the next commit, either"])
def test_a_handlers_commit_that_had_no_answer_is_counted_as_completed(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """The attempt seems to fail, and its failure cannot be written, because the job has completed. A renewal may have found that first."""
    commit = libpq.commit

    def cut_off(*given: Any) -> bool:
        assert commit(*given)
        monkeypatch.undo()
        if told == "nothing of the next commit, either":
            monkeypatch.setattr(Store, "apply", away)
        if told == "that its claim is lost":
            runs = services_of(worker).runs
            for run in runs:
                runs.lose(run)
                runs.stop(run, Stop.LOST)
        raise OperationalError("COMMIT", {}, Exception("the answer was lost"), connection_invalidated=True)

    def away(*_: Any) -> None:
        monkeypatch.undo()
        raise OperationalError("UPDATE", {}, Exception("no route to host"), connection_invalidated=True)

    monkeypatch.setattr(libpq, "commit", cut_off)

    @task(registry=registry, name="writes")
    def writes(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))

    with working(url, registry) as worker:
        id = add_one(engine, enqueue(writes))
        wait_until(lambda: sum(worker.counts.values()) == 1)
        assert job_of(engine, id).status == "completed"
        assert worker.counts == {"completed": 1}
