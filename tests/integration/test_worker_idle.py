"""When a worker that drains is done, what wakes one that has nothing to do, and what it leaves behind."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobContext, JobStatus, Registry, Signal, WorkerSettings, enqueue, task
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.sql.waking import work_for_chores
from sa_jobqueue.statements import retry_jobs
from sa_jobqueue.worker.claiming import demand as polls
from sa_jobqueue.worker.claiming import shortage as surveys
from tests.support.lockstep import Step
from tests.support.waiting import wait_until
from tests.support.working import add_one, drain, job_of, long_healthy, services_of, worker_for, working


async def test_draining_ends_when_one_of_several_queues_was_busy_for_longer(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Nothing due in any of them is idle, whenever each of them was last looked at."""

    @task(registry=registry, name="slow", queue="a")
    async def slow() -> None:
        await asyncio.sleep(0.5)

    with Session(engine) as session:
        session.add(enqueue(slow))
        session.commit()
    worker = worker_for(url, registry, queues={"a": 4, "b": 4, "c": 4}, poll=1.0)

    await asyncio.wait_for(worker.serve(until_idle=True), timeout=30)

    assert worker.counts["completed"] == 1


def lose(engine: Engine, job: Job, *, lease: str = "1 hour") -> int:
    """A job that a dead worker held, and whose lease ran out some time ago."""
    with Session(engine) as session:
        session.add(job)
        session.flush()
        id = job.id
        session.execute(
            text(
                "UPDATE sa_jobqueue.job SET status = 'running', claims = 1, attempt = 1, worker = 'dead', claimed_at = now(), "
                "lease_expires_at = now() - CAST(:lease AS interval) WHERE id = :id"
            ),
            {"id": id, "lease": lease},
        )
        session.commit()
    return id


def test_draining_stays_until_what_a_dead_worker_held_is_rescued_and_done(engine: Engine, registry: Registry) -> None:
    """A worker rescues nothing in its first lease. Where all workers leave sooner, as from cron, none would ever do it."""

    @task(registry=registry, name="runs")
    async def runs() -> None: ...

    id = lose(engine, enqueue(runs))
    long_healthy(
        engine, 10.0, seconds=9.0
    )  # else the test would take a lease, or a busy machine would have none that is healthy
    drain(engine, registry, lease=10.0, listen=False)
    job = job_of(engine, id)
    assert (job.status, job.rescues) == (JobStatus.COMPLETED, 1)


def test_draining_goes_on_with_suspended_jobs_whose_signal_is_there(engine: Engine, registry: Registry) -> None:
    """If workers run for a short time only, as from cron, the regular search for such jobs may come too late."""

    @task(registry=registry, name="waits", queue="b")
    def waits(ctx: JobContext) -> None:
        ctx.wait_signal("go")
        ctx.wait_signal("go on")

    id = add_one(engine, enqueue(waits))
    drain(engine, registry, queues={"a": 1, "b": 1}, listen=False)
    with Session(engine) as session:
        session.add_all([Signal("go"), Signal("go on")])
        session.commit()
    drain(engine, registry, queues={"a": 1, "b": 1}, listen=False)
    assert job_of(engine, id).status == JobStatus.COMPLETED


@pytest.mark.parametrize("lost", ["in another queue", "not yet", "and cannot be rescued"])
def test_draining_does_not_wait_for_what_is_not_rescued_soon(
    engine: Engine, registry: Registry, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lease is an hour, and the worker would stay for it."""

    @task(registry=registry, name="runs")
    async def runs() -> None: ...

    if lost == "and cannot be rescued":  # it began that long ago
        monkeypatch.setattr("sa_jobqueue.worker.claiming.shortage._RESCUED_BY", 0.0)
    queue = "other" if lost == "in another queue" else "default"
    id = lose(engine, enqueue(runs.options(queue=queue)), lease="-1 hour" if lost == "not yet" else "1 hour")
    drained = asyncio.wait_for(
        worker_for(engine, registry, lease=3600, listen=False).serve(until_idle=True), timeout=30
    )
    asyncio.run(drained)
    assert job_of(engine, id).status == JobStatus.RUNNING


def test_a_wake_up_that_comes_during_a_claim_is_heeded_after_it(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim did not see the job; nor would anything else look for it soon, if the wake-up were forgotten."""
    started, said = threading.Event(), threading.Event()
    ready: list[Any] = []
    send = default_store.send_exchange

    @task(registry=registry, name="new")
    def new() -> None:
        started.set()

    def claim_before_it_is_there(*args: Any, **options: Any) -> Any:
        flight = send(*args, **options)
        flight.land()
        if ready and not said.is_set():
            with Session(engine) as session:
                session.add(enqueue(new))
                session.commit()
            services_of(ready[0]).claimer.notify("default")
            said.set()
        return flight

    monkeypatch.setattr("sa_jobqueue.worker.claiming.demand._FIRST_WAIT", 60.0)
    monkeypatch.setattr(default_store, "send_exchange", claim_before_it_is_there)
    with working(url, registry, listen=False, poll=60.0) as worker:
        looks = services_of(worker).claimer._demand.timers
        wait_until(lambda: looks["default"].at)  # it has found nothing, and would look again in a minute
        ready.append(worker)
        services_of(worker).claimer.notify("default")
        assert started.wait(30)


def test_a_worker_that_has_left_leaves_no_thread_behind(engine: Engine, url: str, registry: Registry) -> None:
    """An application, or its tests, may run many in one process."""

    @task(registry=registry, name="one")
    def one() -> None: ...

    with Session(engine) as session:
        session.add_all(enqueue(one) for _ in range(20))
        session.commit()
    before = {thread for thread in threading.enumerate() if thread.name.startswith("sa-jobqueue")}

    worker = drain(url, registry, queues={"default": 4})

    assert worker.counts["completed"] == 20
    wait_until(lambda: not {t for t in threading.enumerate() if t.name.startswith("sa-jobqueue")} - before)


def test_what_a_handler_holds_when_its_worker_leaves_is_closed_when_it_ends(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Its connection goes back to a pool that no code holds any more."""
    held: list[Any] = []
    go_on = threading.Event()

    @task(registry=registry, name="stays")
    def stays(ctx: JobContext) -> None:
        held.append(ctx.session.connection().connection.dbapi_connection)
        go_on.wait(60)

    with Session(engine) as session:
        session.add(enqueue(stays))
        session.commit()
    with working(url, registry, grace=0.1) as worker:
        wait_until(lambda: held)
        worker.stop(now=True)
        wait_until(lambda: not worker.serving)
    assert not held[0].closed
    go_on.set()
    wait_until(lambda: held[0].closed)


def test_a_worker_that_was_stopped_works_again(engine: Engine, url: str, registry: Registry) -> None:
    """`stop(now=True)` of the last run does not end the next one."""

    @task(registry=registry, name="counted")
    def counted() -> None: ...

    with working(url, registry) as worker:
        worker.stop(now=True)
        wait_until(lambda: not worker.serving)
    with Session(engine) as session:
        session.add(enqueue(counted))
        session.commit()
    asyncio.run(worker.serve(until_idle=True))
    assert worker.counts["completed"] == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the worker's modules, which only the test moves on."""
    now = [1_000.0]
    for name, module in list(sys.modules.items()):
        if name.startswith("sa_jobqueue.worker.") and hasattr(module, "monotonic"):
            monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def idle(step: Step, clock: list[float], *, until: float) -> int:
    """Make the rounds of the claimer and the chores of maintenance that are due until then. Returns the number of transactions."""
    claimer, maintenance = step._services.claimer, step._services.maintenance
    made = [0]
    begin = claimer._connection._connector.begin

    def counting(connection: Any) -> Any:
        made[0] += 1
        return begin(connection)

    with pytest.MonkeyPatch.context() as patched:
        for name in ("begin", "begin_one"):
            patched.setattr(type(claimer._connection._connector), name, lambda self, connection: counting(connection))
        while clock[0] < until:
            step.round()
            maintenance._do_chores()
            clock[0] += max(min(claimer._pause(), maintenance._pause()), 0.001)
    return made[0]


async def test_an_idle_worker_makes_a_transaction_every_two_seconds(
    engine: Engine, registry: Registry, clock: list[float]
) -> None:
    """With default settings. The listener makes another every fifteen seconds. The time is the test's."""
    step = Step(worker_for(engine, registry, queues={"a": 4, "b": 4}, poll=1.0), listening=True)
    idle(step, clock, until=1_060.0)
    made = idle(step, clock, until=1_660.0)
    step.close()
    step._services.maintenance._connection.close()  # type: ignore[union-attr]
    assert made <= 600 / 2 - 600 / 15


@pytest.fixture
def rare(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Settings with which a queue is surveyed after a single claim found it empty, and then again after a quarter of an hour."""
    monkeypatch.setattr(polls, "_FIRST_WAIT", 3_600.0)
    monkeypatch.setattr(surveys, "_FIRST_SURVEY", 1_000.0)
    monkeypatch.setattr(surveys, "_LAST_SURVEY", 3_600.0)
    return {"poll": 2_000.0, "lease": 86_400.0}


def put_off(engine: Engine, job: Job) -> None:
    with Session(engine) as session:
        session.add(job)
        session.commit()


def bring_forward(engine: Engine, job: Job) -> None:
    with Session(engine) as session:
        session.execute(retry_jobs(Job.queue == "default"))
        session.commit()


@pytest.mark.parametrize(
    ("first", "then"),
    [(0.5, None), (None, put_off), (3_600, bring_forward)],
    ids=["known before", "enqueued later", "brought forward"],
)
def test_a_delayed_job_starts_when_it_is_due_although_no_poll_comes(
    engine: Engine,
    url: str,
    registry: Registry,
    rare: dict[str, float],
    first: float | None,
    then: Callable[[Engine, Job], None] | None,
) -> None:
    """A timer is set by what a survey found, and by an announcement of what changed after it."""
    ran = threading.Event()

    @task(registry=registry, name="later")
    def later() -> None:
        ran.set()

    if first is not None:
        put_off(engine, enqueue(later.options(delay=first)))
    with working(url, registry, **rare) as worker:
        made = services_of(worker).claimer._surveys
        wait_until(lambda: ran.is_set() or made._at > made._done_at > 0)
        if then is not None:
            then(engine, enqueue(later.options(delay=0.3)))
        assert ran.wait(30)


async def test_a_lost_notification_is_found_within_five_seconds(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    """The next survey finds the job, and the same round claims it."""

    @task(registry=registry, name="lost")
    async def lost() -> None: ...

    step = Step(worker_for(engine, registry, poll=1.0), listening=True)
    idle(step, clock, until=1_060.0)
    with Session(engine) as session:
        session.add(enqueue(lost))  # nobody listens
        session.commit()
    pause = step._services.claimer._pause()
    assert pause <= 5
    clock[0] += pause + 0.001
    step.round()
    await step.run()
    step.close()
    step._services.maintenance._connection.close()  # type: ignore[union-attr]
    assert step._services.claimer.claimed == 1


async def test_maintenance_is_spared_only_while_there_is_nothing_to_do(
    engine: Engine, registry: Registry, clock: list[float]
) -> None:
    """A survey finds what each chore may have to do."""
    there = {
        "waits": "INSERT INTO sa_jobqueue.wait (job_id, step) VALUES (0, 'x')",
        "events": "INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id) VALUES (1, 1)",
        "late": "INSERT INTO sa_jobqueue.job (task, run_at, expires_at) VALUES ('x', now() + interval '1 day', now())",
        "kept": "UPDATE sa_jobqueue.job SET purge_at = now()",
        "keys": "INSERT INTO sa_jobqueue.unique_key (key, job_id) VALUES ('x', 1)",
        "states": "INSERT INTO sa_jobqueue.limit_state (owner, name, key) VALUES ('queue', 'x', '')",
        "workflows": "INSERT INTO sa_jobqueue.workflow DEFAULT VALUES",
        "notes": "INSERT INTO sa_jobqueue.job_log VALUES (1, 1, now(), 1, 1, '[]')",
    }
    step = Step(worker_for(engine, registry, poll=1.0), listening=True)
    idle(step, clock, until=1_060.0)
    spared = step._services._spared
    assert list(there) == list(spared) == list(work_for_chores(Job))
    assert all(chore.due_at() > clock[0] for chore in spared.values())
    found: list[str] = []
    for name, statement in there.items():
        with engine.begin() as connection:
            connection.execute(text(statement))
        clock[0] += step._services.claimer._pause() + 0.001
        step.round()
        found.append(name)
        assert [name for name, chore in spared.items() if chore.quiet_until == 0] == found
    step.close()
    step._services.maintenance._connection.close()  # type: ignore[union-attr]


@pytest.mark.nightly
def test_jobs_of_an_idle_worker_start_within_five_seconds_although_nothing_tells_it_and_its_connections_are_ended(
    engine: Engine, url: str, registry: Registry
) -> None:
    """With default settings: jobs for now and for later, half of them written past the trigger, while backends are ended at random."""
    chance, begun, waits, defaults = random.Random(43), dict[int, float](), list[float](), WorkerSettings()

    @task(registry=registry, name="timed")
    def timed(ctx: JobContext) -> None:
        begun.setdefault(ctx.job_id, time.time())

    def end_backends() -> None:
        of_worker = "datname = current_database() AND application_name LIKE 'sa-jobqueue worker%'"
        with engine.begin() as connection:
            found = connection.scalars(text(f"SELECT pid FROM pg_stat_activity WHERE {of_worker}")).all()
            for pid in chance.sample(found, chance.randint(0, len(found))):
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})

    with working(url, registry, lease=defaults.lease, poll=defaults.poll) as worker:
        made = services_of(worker).claimer._surveys
        for told in [True, False, False] * 4:
            wait_until(lambda: made._wait >= made._every and made._at > made._done_at, 90)
            end_backends()
            due = time.time() + (delay := chance.choice([0.0, chance.uniform(0, 3)]))
            with Session(engine) as session:
                if not told:
                    session.execute(text("SET LOCAL session_replication_role = 'replica'"))
                session.add(job := enqueue(timed.options(delay=delay)))
                session.commit()
                number = job.id
            if told:
                end_backends()
            wait_until(lambda number=number: number in begun, 90)
            waits.append(begun[number] - due)
    assert max(waits) <= 5 + 2, sorted(waits)  # two seconds to connect again
