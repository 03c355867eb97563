"""Jobs that cannot be claimed, or not now: they hold up no other job, and are claimed when they can be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Engine, func, insert, select, text

from sa_jobqueue import JobStatus, Registry, Retry, task
from sa_jobqueue.worker.claiming.poison import skipped
from sa_jobqueue.worker.connections.service import APPLICATION
from tests.support.factory import TABLE, make_job, make_jobs
from tests.support.nightly import crossed
from tests.support.waiting import wait_until
from tests.support.working import drain, services_of, working


@pytest.fixture
def ran(registry: Registry) -> list[int]:
    """The `n` of each run of the task "runs", as it comes."""
    ran: list[int] = []

    @task(registry=registry, name="runs")
    async def runs(n: int) -> None:
        ran.append(n)

    return ran


def fill(engine: Engine, numbers: range, **columns: object) -> list[int]:
    """A job of "runs" for each of these; their ids."""
    with engine.begin() as connection:
        jobs = [{"task": "runs", "args": {"n": n}, **columns} for n in numbers]
        return list(connection.scalars(insert(TABLE).returning(TABLE.c.id, sort_by_parameter_order=True), jobs))


def completed(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(select(func.count()).where(TABLE.c.status == JobStatus.COMPLETED)) or 0)


def before_update(engine: Engine, when: str, does: str) -> Callable[[], None]:
    """A trigger of the application's, where `when` holds for a change of a job; calling what comes back drops it."""
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; END $$")
        connection.exec_driver_sql(
            f"CREATE TRIGGER odd BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION odd()"
        )

    def drop() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER odd ON sa_jobqueue.job")

    return drop


def test_those_due_behind_many_that_cannot_be_claimed_start_at_once(
    engine: Engine, url: str, registry: Registry, ran: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger refuses 150 jobs: those behind them run, and the log does not name them all. Without the trigger, all run."""
    bad = fill(engine, range(150))
    fill(engine, range(150, 155))
    fill(engine, range(155, 160), queue="other")
    mend = before_update(engine, f"old.id <= {bad[-1]}", "RAISE 'not these'")

    with working(url, registry, queues={"default": 4, "other": 1}):
        wait_until(lambda: len(ran) == 10)
        assert sorted(ran) == list(range(150, 160))
        assert caplog.text.count("cannot be claimed") < len(bad)
        mend()
        wait_until(lambda: len(ran) == 160)

    assert sorted(ran) == list(range(160))


def test_jobs_under_a_unique_index_of_running_ones_all_run(
    engine: Engine, url: str, registry: Registry, ran: list[int]
) -> None:
    """One running job per tenant, says the application: five of one tenant come one after the other, and keep no other tenant."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE UNIQUE INDEX one_per_tenant ON sa_jobqueue.job ((meta->>'tenant')) WHERE status = 'running'"
        )
    fill(engine, range(5), meta={"tenant": "a"})
    fill(engine, range(5, 10), meta={"tenant": "b"})

    with working(url, registry, queues={"default": 10}):
        wait_until(lambda: len(ran) == 10)

    assert sorted(ran) == list(range(10))


def test_a_job_that_cannot_be_claimed_hides_none_that_becomes_due_or_visible_later(
    engine: Engine, url: str, registry: Registry, ran: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """One that committed late lies before it, and one that is retried behind; new ones that are refused change nothing."""
    once = threading.Event()

    @task(registry=registry, name="fails once")
    def fails_once() -> Retry | None:
        if once.is_set():
            return None
        once.set()
        return Retry(after=0.2)

    (bad,) = fill(engine, range(1), meta={"bad": True})
    before_update(engine, "old.meta ? 'bad'", "RAISE 'not this'")

    with working(url, registry, queues={"default": 4}):
        wait_until(lambda: f"job {bad} cannot be claimed" in caplog.text)
        with engine.begin() as connection:
            make_job(connection, task="fails once")
        wait_until(once.is_set)
        fill(engine, range(1, 4), meta={"bad": True})
        with engine.begin() as connection:
            late = make_job(connection, task="runs", args={"n": 4}, run_at=timedelta(hours=-1))
        wait_until(lambda: completed(engine) == 2)
        assert ran == [4]
        assert late > bad


def test_a_job_that_is_refused_at_the_commit_holds_up_no_other(
    engine: Engine, url: str, registry: Registry, ran: list[int]
) -> None:
    """A deferred constraint trigger refuses the claim of a job, and the completion of another job."""
    (unclaimable, unwritable, *_) = fill(engine, range(5))
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$"
        )
        connection.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER odd AFTER UPDATE ON sa_jobqueue.job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
            f"WHEN (new.id = {unclaimable} AND new.status = 'running' OR new.id = {unwritable} AND new.status = 'completed') "
            "EXECUTE FUNCTION odd()"
        )
    with working(url, registry) as worker:
        wait_until(lambda: completed(engine) == 3 and worker.counts["failed"] == 1, 15)
    assert sorted(ran) == [1, 2, 3, 4]


@pytest.mark.parametrize("slots", [1, 4])
def test_a_job_that_a_trigger_leaves_as_it_is_hides_no_other_and_is_said(
    engine: Engine, url: str, registry: Registry, ran: list[int], caplog: pytest.LogCaptureFixture, slots: int
) -> None:
    """It returns NULL for one: the claim returns one job fewer, without an error."""
    (bad, *_) = fill(engine, range(27))
    mend = before_update(engine, f"old.id = {bad}", "RETURN NULL")

    with working(url, registry, queues={"default": slots}):
        wait_until(lambda: len(ran) == 26)
        wait_until(lambda: f"job {bad} cannot be claimed" in caplog.text)
        assert "perhaps a trigger returns NULL" in caplog.text
        assert 0 not in ran
        mend()
        wait_until(lambda: len(ran) == 27)


def test_draining_ends_with_all_that_can_be_claimed(
    engine: Engine, url: str, registry: Registry, ran: list[int]
) -> None:
    """Not when a claim returns nothing because the first job cannot be claimed."""
    (bad, worse, *_) = fill(engine, range(20))
    before_update(engine, f"old.id IN ({bad}, {worse})", f"IF old.id = {bad} THEN RAISE 'no'; END IF; RETURN NULL")

    drain(url, registry, queues={"default": 1})

    assert ran == list(range(2, 20))


def test_jobs_whose_workers_died_twice_follow_each_other_at_once(engine: Engine, url: str) -> None:
    """One at a time in each process, but each as soon as the last has ended: none waits for a part of the lease."""
    lock, at_once, most, ran = threading.Lock(), [0, 0], [0, 0], []

    def registry_of(process: int) -> Registry:
        registry = Registry()

        @task(registry=registry, name="suspect")
        def suspect() -> None:
            with lock:
                at_once[process] += 1
                most[process] = max(most[process], at_once[process])
            threading.Event().wait(0.05)  # for another one to come meanwhile
            with lock:
                at_once[process] -= 1
                ran.append(process)

        return registry

    with engine.begin() as connection:
        make_jobs(connection, 12, task="suspect", rescues=2)
    # One that was sent away for a part of such a lease would not be back in time.
    with (
        working(url, registry_of(0), queues={"default": 12}, lease=3_600.0),
        working(url, registry_of(1), queues={"default": 12}, lease=3_600.0),
    ):
        wait_until(lambda: completed(engine) == 12)

    assert max(most) == 1
    with engine.connect() as connection:
        assert set(connection.scalars(select(TABLE.c.attempt))) == {1}


def test_a_job_that_cannot_be_given_back_keeps_no_other(
    engine: Engine, url: str, registry: Registry, ran: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger refuses it: one of two whose workers died twice, or what a broken commit may have claimed."""
    begun, go_on = threading.Event(), threading.Event()

    @task(registry=registry, name="holds")
    def holds() -> None:
        begun.set()
        go_on.wait(30)

    before_update(engine, "old.status = 'running' AND new.status = 'queued'", "RAISE 'it is taken'")
    with engine.begin() as connection:
        make_jobs(connection, 3, task="holds", rescues=2)
    with working(url, registry, queues={"default": 5}) as worker:
        assert begun.wait(30)
        fill(engine, range(10))
        wait_until(lambda: len(ran) == 10)
        with engine.begin() as connection:
            claimed = {"worker": str(worker._spec.id), "lease_expires_at": timedelta(hours=1)}
            make_job(connection, "running", task="holds", **claimed)
            ended = func.pg_terminate_backend(text("pid"))
            ours = text("pg_stat_activity WHERE application_name = :name AND datname = current_database()")
            connection.execute(select(ended).select_from(ours), {"name": APPLICATION})
        wait_until(lambda: "cannot be given back" in caplog.text)
        fill(engine, range(10, 20))
        wait_until(lambda: len(ran) == 20)
        go_on.set()


def test_no_more_than_a_thousand_are_skipped(
    engine: Engine, url: str, registry: Registry, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the worker holds the queue, tries again, and goes on when the trigger is gone."""
    monkeypatch.setattr(skipped, "MOST", 10)
    bad = fill(engine, range(30))
    fill(engine, range(30, 35))
    mend = before_update(engine, f"old.id <= {bad[-1]}", "RAISE 'not these'")

    with working(url, registry, queues={"default": 4}) as worker:
        wait_until(lambda: worker.serving)
        mend()
        wait_until(lambda: len(ran) == 35)


def test_the_log_says_that_no_more_jobs_can_be_skipped(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a trigger returns NULL nothing else would tell why those behind are not claimed."""
    monkeypatch.setattr(skipped, "MOST", 10)
    bad = fill(engine, range(30))
    before_update(engine, f"old.id <= {bad[-1]}", "RETURN NULL")
    with working(url, registry, queues={"default": 4}):
        wait_until(lambda: "10 jobs are skipped, and no more of queue 'default' can be: those that are" in caplog.text)


def test_more_jobs_than_can_be_skipped_hold_up_no_other_queue(
    engine: Engine, url: str, registry: Registry, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other queues go on, on the same connection, and are claimed in batches."""
    monkeypatch.setattr(skipped, "MOST", 10)
    bad = fill(engine, range(30))
    fill(engine, range(30, 35))
    mend = before_update(engine, f"old.id <= {bad[-1]}", "RAISE 'not these'")

    with working(url, registry, queues={"default": 4, "other": 4}) as worker:
        claimer = services_of(worker).claimer
        wait_until(lambda: claimer.skipped.full)
        connection = claimer._connection.current
        fill(engine, range(35, 435), queue="other")
        wait_until(lambda: sum(n >= 35 for n in ran) == 400)
        assert claimer._connection.current is connection
        mend()
        wait_until(lambda: len(ran) == 435)


def test_the_jobs_of_one_queue_use_up_no_other_queues_share(
    engine: Engine, url: str, registry: Registry, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that cannot be claimed are skipped there, too, so the others come as fast as ever."""
    monkeypatch.setattr(skipped, "MOST", 10)
    bad = fill(engine, range(30))
    mend = before_update(engine, f"old.id <= {bad[-1] + 3}", "RAISE 'not these'")

    with working(url, registry, queues={"default": 4, "other": 4}) as worker:
        claimer = services_of(worker).claimer
        wait_until(lambda: claimer.skipped.full)
        fill(engine, range(30, 333), queue="other")
        wait_until(lambda: sorted(ran) == list(range(33, 333)))
        mend()
        wait_until(lambda: len(ran) == 333)


@pytest.mark.parametrize(
    ("queues", "does"), crossed([["default"], ["default", "other"]], ["RAISE 'not these'", "RETURN NULL"])
)
def test_draining_ends_though_no_more_can_be_skipped(
    engine: Engine,
    url: str,
    registry: Registry,
    ran: list[int],
    monkeypatch: pytest.MonkeyPatch,
    queues: list[str],
    does: str,
) -> None:
    """It has nothing left to do, as with fewer jobs that cannot be claimed; the log says that some are out of reach."""
    monkeypatch.setattr(skipped, "MOST", 10)
    bad = fill(engine, range(30))
    for queue in queues[1:]:
        fill(engine, range(30, 35), queue=queue)
    before_update(engine, f"old.id <= {bad[-1]}", does)

    drain(url, registry, queues=dict.fromkeys(queues, 4))

    assert len(ran) == 5 * (len(queues) - 1)


def test_a_job_whose_claim_takes_too_long_holds_up_no_other(
    engine: Engine, url: str, registry: Registry, ran: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """For one of them a trigger waits until the claim times out."""
    bad = fill(engine, range(20))[5]
    before_update(engine, f"old.id = {bad}", "PERFORM pg_sleep(30); RETURN new")

    with working(url, registry, queues={"default": 10}, lease=1.0):
        wait_until(lambda: len(ran) == 19)
        assert f"job {bad} cannot be claimed" in caplog.text

    assert sorted(ran) == [n for n in range(20) if n != 5]
