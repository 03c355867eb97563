"""How the worker goes about its work: slots, order, cancels, timeouts, locks, bad rows, sessions, connections."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import Engine, create_engine, select, text, true
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import (
    AsyncJobContext,
    Job,
    JobContext,
    JobStatus,
    QueueState,
    Registry,
    RetryPolicy,
    Worker,
    enqueue,
    enqueue_many,
    task,
)
from sa_jobqueue.errors import AutocommitError, ConfigurationError, DatabaseUnavailable, SchemaError
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.sql.store import Store
from sa_jobqueue.statements import cancel_jobs, release_jobs
from sa_jobqueue.worker.process.inside import Ending
from sa_jobqueue.worker.running.run import Run, Stop
from sa_jobqueue.worker.running.slots import Slots
from tests.support import pooler
from tests.support.databases import connect, driver_url, terminate_others
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import (
    add,
    add_one,
    cancel,
    drain,
    finished,
    gate_is_open,
    job_of,
    renew_now,
    services_of,
    worker_for,
    working,
)


def take_away(engine: Engine, id: int) -> None:
    with Session(engine) as session:
        session.execute(release_jobs(Job.id == id))
        session.commit()


# ---- slots and order


def test_a_queue_never_has_more_running_than_slots_whatever_the_kinds(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Sync and async handlers share the slots of their queue; each queue has its own."""
    lock, now, most = threading.Lock(), {"a": 0, "b": 0}, {"a": 0, "b": 0}
    gate = threading.Event()

    def enter(queue: str) -> None:
        with lock:
            now[queue] += 1
            most[queue] = max(most[queue], now[queue])

    def leave(queue: str) -> None:
        with lock:
            now[queue] -= 1

    @task(registry=registry, name="sync")
    def sync_handler(ctx: JobContext) -> None:
        enter(ctx.queue)
        gate.wait(30)
        leave(ctx.queue)

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        enter(ctx.queue)
        while not gate.is_set():
            await asyncio.sleep(0.001)
        leave(ctx.queue)

    ids = add(
        engine,
        *(enqueue(t.options(queue=q)) for _ in range(12) for t in (sync_handler, async_handler) for q in ("a", "b")),
    )
    with working(url, registry, queues={"a": 3, "b": 5}):
        wait_until(lambda: now == {"a": 3, "b": 5})
        gate.set()
        wait_until(lambda: finished(engine, *ids))
    assert most == {"a": 3, "b": 5}


def test_higher_priority_first_then_older_first(engine: Engine, url: str, registry: Registry) -> None:
    """With one slot the order of the starts is the order of the claim."""
    ran: list[tuple[int, int]] = []

    @task(registry=registry, name="sync")
    def sync_handler(priority: int, n: int) -> None:
        ran.append((priority, n))

    @task(registry=registry, name="async")
    async def async_handler(priority: int, n: int) -> None:
        ran.append((priority, n))

    jobs = [
        enqueue([sync_handler, async_handler][n % 2].options(priority=p), p, n)
        for n in range(20) for p in (0, 9, 4)
    ]  # fmt: skip
    add(engine, *jobs)
    drain(url, registry, queues={"default": 1})
    assert ran == sorted(ran, key=lambda one: (-one[0], one[1]))
    assert len(ran) == 60


def test_every_job_of_a_large_batch_runs_once(engine: Engine, url: str, registry: Registry) -> None:
    """5,000 jobs of both kinds, through the buffer."""
    ran: list[int] = []

    @task(registry=registry, name="sync")
    def sync_handler(n: int) -> None:
        ran.append(n)

    @task(registry=registry, name="async")
    async def async_handler(n: int) -> None:
        ran.append(n)

    with Session(engine) as session:
        session.execute(enqueue_many([(sync_handler, async_handler)[n % 2].call(n) for n in range(5_000)]))
        session.commit()
    worker = drain(url, registry, queues={"default": 20})
    assert sorted(ran) == list(range(5_000))
    assert worker.counts == {"completed": 5_000}


def test_what_cannot_start_soon_goes_back(engine: Engine, url: str, registry: Registry) -> None:
    """A buffer that fast jobs had filled is given back when a slow one comes, no attempt spent."""
    gate = threading.Event()

    @task(registry=registry, name="fast")
    def fast(n: int) -> None: ...

    @task(registry=registry, name="slow")
    def slow() -> None:
        gate.wait(60)

    with Session(engine) as session:
        session.execute(enqueue_many([fast.call(n) for n in range(3_000)]))
        session.execute(enqueue_many([slow.call()] * 2 + [fast.options(priority=3).call(n) for n in range(500)]))
        session.commit()
    with working(url, registry, queues={"default": 2}, hoard=0.2) as worker:

        def only_the_slow_run() -> bool:
            with Session(engine) as session:
                running = session.scalars(select(Job).where(Job.status == JobStatus.RUNNING)).all()
                return [job.task for job in running] == ["slow", "slow"]

        try:
            wait_until(only_the_slow_run)
            with Session(engine) as session:
                waiting = session.scalars(select(Job).where(Job.status == JobStatus.QUEUED)).all()
                assert {job.attempt for job in waiting} <= {0}
        finally:
            gate.set()
        wait_until(lambda: worker.counts["completed"] == 3_502)


# ---- stopping a run


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_running_job_is_cancelled(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """An async handler is cancelled; a sync one sees `ctx.cancelled` and returns. What it wrote is not kept."""
    started = threading.Event()

    @task(registry=registry, name="sync")
    def sync_handler(ctx: JobContext) -> None:
        ctx.session.execute(text("CREATE TABLE trace ()"))
        started.set()
        wait_until(lambda: ctx.cancelled)

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("CREATE TABLE trace ()"))
        started.set()
        await asyncio.sleep(60)

    (id,) = add(engine, enqueue(sync_handler if kind == "sync" else async_handler))
    with working(url, registry):
        wait_until(started.is_set)
        cancel(engine, id)
        wait_until(lambda: finished(engine, id))
    job = job_of(engine, id)
    assert job.status == JobStatus.CANCELLED
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('trace')")) is None


@pytest.mark.parametrize("listen", [True, False])
def test_a_cancel_is_told_to_the_worker_or_asked_for(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, listen: bool
) -> None:
    """If the worker listens, it is told at the commit; here it does not ask by itself. If it cannot listen, it asks every second."""
    monkeypatch.setattr("sa_jobqueue.worker.maintenance.timeouts._SELDOM", 1_000.0)
    if listen:
        pooler.skip_where_deaf(url)
    started, told = threading.Event(), threading.Event()

    @task(registry=registry)
    def handler(ctx: JobContext) -> None:
        started.set()
        wait_until(lambda: ctx.cancelled)
        told.set()

    (id,) = add(engine, enqueue(handler))
    with working(url, registry, lease=600, listen=listen) as worker:
        wait_until(lambda: started.is_set() and worker.state().listening == listen)
        cancels = services_of(worker).cancels
        wait_until(lambda: not cancels._announced)  # as the worker began to listen
        cancels._checked = monotonic()
        cancel(engine, id)
        wait_until(told.is_set)
        wait_until(lambda: finished(engine, id))
    assert job_of(engine, id).status == JobStatus.CANCELLED


def test_a_cancel_that_is_told_while_long_arguments_are_fetched_reaches_the_handler(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is claimed, but is not here yet when the cancel is told; and the worker does not ask by itself here."""
    monkeypatch.setattr("sa_jobqueue.worker.maintenance.timeouts._SELDOM", 1_000.0)
    pooler.skip_where_deaf(url)
    fetch, begun, go_on = Store.fetch_args, threading.Event(), threading.Event()

    def fetch_slowly(self: Store, *args: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return fetch(self, *args, **options)

    monkeypatch.setattr(Store, "fetch_args", fetch_slowly)

    @task(registry=registry)
    def handler(ctx: JobContext, long: str) -> None:
        wait_until(lambda: ctx.cancelled)

    with working(url, registry, lease=600) as worker:
        wait_until(lambda: worker.state().listening)
        cancels = services_of(worker).cancels
        id = add_one(engine, enqueue(handler, "x" * 100_000))
        assert begun.wait(30)
        cancels._checked, cancels._announced_at = monotonic(), 0.0
        cancel(engine, id)
        wait_until(lambda: cancels._announced_at)
        go_on.set()
        wait_until(lambda: finished(engine, id))
    assert job_of(engine, id).status == JobStatus.CANCELLED


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_that_catches_every_exception_is_stopped_all_the_same(
    engine: Engine, url: str, registry: Registry, kind: str
) -> None:
    """`raise_if_cancelled` raises what is no Exception; and nothing before there is something to stop for."""
    started = threading.Event()

    @task(registry=registry, name="sync")
    def sync_handler(ctx: JobContext) -> None:
        ctx.session.execute(text("CREATE TABLE trace ()"))
        ctx.raise_if_cancelled()
        started.set()
        wait_until(lambda: ctx.cancelled)
        try:
            ctx.raise_if_cancelled()
        except Exception:
            return

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("CREATE TABLE trace ()"))
        ctx.raise_if_cancelled()
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        try:
            ctx.raise_if_cancelled()
        except Exception:
            return

    (id,) = add(engine, enqueue(sync_handler if kind == "sync" else async_handler))
    with working(url, registry):
        wait_until(started.is_set)
        cancel(engine, id)
        wait_until(lambda: finished(engine, id))
    job = job_of(engine, id)
    assert (job.status, job.errors[-1]["type"]) == (JobStatus.CANCELLED, "Cancelled")
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('trace')")) is None


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_job_that_is_cancelled_while_it_waits_for_its_slot_does_not_begin(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It was claimed ahead; when its turn comes, what was said meanwhile still holds."""
    gate, ran = threading.Event(), []

    @task(registry=registry, name="sync")
    def sync_handler(first: bool) -> None:
        ran.append(first)
        wait_until(gate.is_set)

    @task(registry=registry, name="async")
    async def async_handler(first: bool) -> None:
        ran.append(first)
        await wait_until_async(gate.is_set)

    # One is claimed ahead, however fast the others end.
    monkeypatch.setattr(Slots, "measure", lambda slots: setattr(slots, "_buffer", 1.0))
    handler = sync_handler if kind == "sync" else async_handler
    with working(url, registry, queues={"default": 1}, hoard=60) as worker:
        services = services_of(worker)
        (first,) = add(engine, enqueue(handler, True))
        wait_until(lambda: ran)
        (ahead,) = add(engine, enqueue(handler, False))
        wait_until(lambda: worker.state().queues["default"].waiting == 1)
        cancel(engine, ahead)
        wait_until(lambda: any(run.job.id == ahead and run.stop for run in services.runs))
        gate.set()
        wait_until(lambda: finished(engine, first, ahead))
    assert ran == [True]
    assert [job_of(engine, id).status for id in (first, ahead)] == [JobStatus.COMPLETED, JobStatus.CANCELLED]


def test_the_state_of_a_worker_says_what_runs_waits_and_came_of_it(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By queue, and in numbers since it began; a copy, which does not change with the worker."""
    gate = threading.Event()

    @task(registry=registry, name="waits")
    def waits() -> None:
        wait_until(gate.is_set)

    @task(registry=registry, name="fails", max_attempts=1)
    def fails() -> None:
        raise RuntimeError

    # One is claimed ahead, however fast the others end.
    monkeypatch.setattr(Slots, "measure", lambda slots: setattr(slots, "_buffer", 1.0))
    with working(url, registry, queues={"default": 1, "mail": 2}, hoard=60) as worker:
        add(engine, enqueue(fails))
        wait_until(lambda: worker.counts == {"failed": 1})
        add(engine, enqueue(waits), enqueue(waits))
        wait_until(lambda: (worker.state().running, worker.state().waiting) == (1, 1))
        wait_until(lambda: worker.state().listening)
        wait_until(lambda: worker.state().claimed == 3)  # counted after the jobs were handed on
        before = worker.state()
        gate.set()
        wait_until(lambda: worker.counts == {"failed": 1, "completed": 2})
        wait_until(lambda: worker.state().running == worker.state().unfinished == 0)
        after = worker.state()
    assert before.queues == {
        "default": QueueState(slots=1, running=1, waiting=1, stuck=0, paused=False),
        "mail": QueueState(slots=2, running=0, waiting=0, stuck=0, paused=False),
    }
    assert (before.serving, before.slots, before.running, before.waiting) == (True, 3, 1, 1)
    assert (before.claimed, before.started, before.ended, before.unfinished) == (3, 2, 1, 2)
    assert (after.claimed, after.started, after.ended, after.unfinished, after.unwritten) == (3, 3, 3, 0, 0)
    assert (before.counts, after.counts) == ({"failed": 1}, {"failed": 1, "completed": 2})
    assert not worker.state().serving


def test_a_job_that_completes_in_spite_of_a_cancel_is_completed(engine: Engine, url: str, registry: Registry) -> None:
    """A cancel asks; work that was done stays done. But a retry after it does not happen."""
    gates = {"complete": threading.Event(), "fail": threading.Event()}

    @task(registry=registry, name="handler", retry=RetryPolicy(base=0))
    def handler(way: str) -> None:
        gates[way].wait(30)
        if way == "fail":
            raise RuntimeError

    done, failed = add(engine, enqueue(handler, "complete"), enqueue(handler, "fail"))
    with working(url, registry):
        wait_until(lambda: {job_of(engine, id).status for id in (done, failed)} == {JobStatus.RUNNING})
        with Session(engine) as session:
            session.execute(cancel_jobs(true()))
            session.commit()
        for gate in gates.values():
            gate.set()
        wait_until(lambda: finished(engine, done, failed))
    assert job_of(engine, done).status == JobStatus.COMPLETED
    assert (job_of(engine, failed).status, job_of(engine, failed).attempt) == (JobStatus.CANCELLED, 1)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_run_whose_job_was_taken_away_and_claimed_here_again_is_stopped(
    engine: Engine, url: str, registry: Registry, kind: str
) -> None:
    """By the same worker, which renews the new claim, and would never hear that the old one is lost."""
    runs: list[int] = []
    told = threading.Event()

    @task(registry=registry, name="sync")
    def sync_handler(ctx: JobContext) -> None:
        if not runs:
            ctx.session.execute(text("CREATE TABLE trace ()"))
            runs.append(1)
            wait_until(lambda: ctx.cancelled)
            told.set()
        wait_until(told.is_set)

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        if not runs:
            await ctx.session.execute(text("CREATE TABLE trace ()"))
            runs.append(1)
            try:
                await asyncio.sleep(60)
            finally:
                told.set()
        await wait_until_async(told.is_set)

    with working(url, registry) as worker:
        services = services_of(worker)
        (id,) = add(engine, enqueue(sync_handler if kind == "sync" else async_handler))
        wait_until(lambda: runs)
        take_away(engine, id)
        wait_until(told.is_set)
        wait_until(lambda: finished(engine, id))
        wait_until(lambda: not worker.state().queues["default"].running and not services.runs.all())
        wait_until(lambda: worker.counts == {"completed": 1, "lost": 1})
    job = job_of(engine, id)
    assert (job.status, job.attempt, job.claims, job.errors) == (JobStatus.COMPLETED, 1, 2, [])
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('trace')")) is None


def test_a_lost_lease_is_said_also_where_the_handler_ends_at_once(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop may have cancelled the handler before the renewal goes on."""
    reached = threading.Event()

    @task(registry=registry)
    async def handler() -> None:
        reached.set()
        await asyncio.sleep(60)

    with working(url, registry) as worker:
        runs, claimer = services_of(worker).runs, services_of(worker).claimer
        stop = runs.stop

        def stop_and_wait(run: Run, why: Stop) -> None:
            stop(run, why)
            wait_until(lambda: run.settled)

        monkeypatch.setattr(runs, "stop", stop_and_wait)
        (id,) = add(engine, enqueue(handler))
        wait_until(reached.is_set)
        claimer.stop_claiming()
        take_away(engine, id)
        renew_now(worker)
        wait_until(lambda: not runs.all())
        worker.stop()
    assert f"job {id}: its lease is lost; it is stopped, and nothing it writes is kept" in caplog.messages


@pytest.mark.parametrize("claimed_again", [True, False])
def test_a_lost_run_keeps_its_slot_and_is_waited_for(
    engine: Engine, url: str, registry: Registry, claimed_again: bool
) -> None:
    """Its timeout ends nothing that is left to write, but says that its slot is stuck; until then it is waited for."""
    reached, gate, leaving = threading.Event(), threading.Event(), threading.Event()
    waited: list[bool] = []

    @task(registry=registry, name="stays", timeout=60)
    def stays() -> None:
        if not reached.is_set():
            reached.set()
            gate.wait(60)

    @task(registry=registry, name="ends last", timeout=60)
    def ends_last() -> None:
        if not waited:
            waited.append(False)
            leaving.wait(60)
            services.claimer.thread.join(0.3)
            waited.append(services.claimer.thread.is_alive())

    with working(url, registry) as worker:
        services = services_of(worker)
        slots = services.all_slots["default"]
        ids = add(engine, enqueue(stays), enqueue(ends_last))
        wait_until(lambda: reached.is_set() and waited)
        first = {run.task.name: run for run in services.runs}
        if not claimed_again:
            services.claimer.stop_claiming()
        for id in ids:
            take_away(engine, id)
        renew_now(worker)
        wait_until(lambda: all(run.stop is Stop.LOST for run in first.values()))
        assert set(services.running()) >= set(first.values())
        first["stays"].timeout_at = 0.0
        wait_until(lambda: slots.stuck == 1)
        assert first["stays"] not in services.running()
        gate.set()
        wait_until(lambda: slots.stuck == 0)
        wait_until(lambda: slots.running == 1 and not len(services.runs))
        if claimed_again:
            wait_until(lambda: finished(engine, *ids))
        worker.stop()
        wait_until(lambda: slots._closed)
        leaving.set()
    assert waited == [False, True]
    assert set(worker.counts) <= {"completed", "lost"}
    assert [job_of(engine, id).errors for id in ids] == [[], []]


def test_an_async_handler_is_stopped_by_its_timeout(engine: Engine, url: str, registry: Registry) -> None:
    """The attempt fails; a TimeoutError of the handler's own is told apart."""

    @task(registry=registry, name="late", timeout=0.1, max_attempts=1)
    async def late() -> None:
        await asyncio.sleep(60)

    @task(registry=registry, name="own", timeout=60, max_attempts=1)
    async def own() -> None:
        raise TimeoutError("mine")

    late_id, own_id = add(engine, enqueue(late), enqueue(own))
    drain(url, registry)
    assert "HandlerTimeout" in job_of(engine, late_id).errors[0]["type"]
    assert job_of(engine, own_id).errors[0]["message"] == "mine"


def test_a_sync_handler_that_times_out_is_given_up_and_fenced(engine: Engine, url: str, registry: Registry) -> None:
    """The attempt fails at once; its slot stays taken until the thread ends, and what it writes then is refused."""
    gate, ended = threading.Event(), threading.Event()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (said text)"))

    @task(registry=registry, name="late", timeout=0.2, max_attempts=1)
    def late(ctx: JobContext) -> None:
        ctx.session.execute(text("INSERT INTO note VALUES ('late')"))
        gate.wait(30)
        ended.set()

    running = threading.Semaphore(0)

    @task(registry=registry, name="next")
    def following() -> None:
        running.release()
        gate.wait(30)

    first, *others = add(engine, enqueue(late.options(priority=9)), enqueue(following), enqueue(following))
    with working(url, registry, queues={"default": 2}):
        wait_until(lambda: finished(engine, first))
        assert running.acquire(timeout=20)
        assert not running.acquire(timeout=0.3)  # there is one slot left
        assert not ended.is_set()
        gate.set()
        wait_until(lambda: finished(engine, *others))
    job = job_of(engine, first)
    assert job.status == JobStatus.FAILED
    assert "timeout of 0.2 s" in job.errors[0]["message"]
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM note")) == 0


def test_stopping_waits_for_what_runs_and_gives_back_the_rest(engine: Engine, url: str, registry: Registry) -> None:
    """`stop()` claims no more and lets handlers finish; after the grace time they are stopped and given back."""
    started = threading.Event()

    @task(registry=registry, name="long")
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    (id,) = add(engine, enqueue(long))
    with working(url, registry, grace=0.1):
        wait_until(started.is_set)
    job = job_of(engine, id)
    assert (job.status, job.attempt, job.rescues) == (JobStatus.QUEUED, 0, 1)
    assert [error["type"] for error in job.errors] == ["Interrupted"]


def test_a_job_that_may_not_run_twice_fails_when_its_worker_leaves(
    engine: Engine, url: str, registry: Registry
) -> None:
    """`rescue=False`: interrupted by a shutdown, or claimed by a worker that died, it is failed, never started again."""
    started, ran = threading.Event(), []

    @task(registry=registry, name="long", rescue=False)
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    @task(registry=registry, name="rescued", rescue=False)
    def rescued() -> None:
        ran.append(1)

    interrupted, orphan = add(engine, enqueue(long), enqueue(rescued.options(delay=3600)))
    with working(url, registry, grace=0.1):
        wait_until(started.is_set)
    with engine.begin() as connection:  # as a worker that does not know the task would have rescued it
        connection.execute(text("UPDATE sa_jobqueue.job SET rescues = 1, run_at = now() WHERE task = 'rescued'"))
    drain(url, registry)
    assert [job_of(engine, id).status for id in (interrupted, orphan)] == [JobStatus.FAILED, JobStatus.FAILED]
    assert [job_of(engine, id).errors[0]["type"] for id in (interrupted, orphan)] == ["Interrupted", "Discard"]
    assert ran == []


@pytest.mark.parametrize("who", ["it", "all"])
def test_a_worker_that_is_cancelled_again_and_again_still_leaves(
    engine: Engine, url: str, registry: Registry, who: str
) -> None:
    """As anyio does it, or `asyncio.run` at its end: what ran goes back, the threads end, the worker is struck off."""
    started = threading.Event()

    @task(registry=registry, name="long")
    async def long() -> None:
        started.set()
        await asyncio.sleep(600)

    async def main() -> Worker:
        worker = worker_for(url, registry, grace=60)
        serving = asyncio.create_task(worker.serve())
        await wait_until_async(started.is_set)
        assert worker.serving
        for _ in range(5):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for one in others if who == "all" else {serving}:
                one.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await serving
        return worker

    (id,) = add(engine, enqueue(long))
    before = set(threading.enumerate())
    assert not asyncio.run(main()).serving
    wait_until(lambda: set(threading.enumerate()) <= before)
    job = job_of(engine, id)
    assert (job.status, job.attempt, [error["type"] for error in job.errors]) == (JobStatus.QUEUED, 0, ["Interrupted"])
    with Session(engine) as session:
        assert session.scalars(select(WorkerRow)).all() == []


@pytest.mark.parametrize("now", [False, True])
async def test_a_stop_before_it_has_begun_is_heeded(database_url: str, registry: Registry, now: bool) -> None:
    """So an application whose start fails just then need not wait. The next `serve()` works as usual."""
    worker = worker_for(database_url, registry)
    serving = asyncio.create_task(worker.serve())
    worker.stop(now=now)
    assert await asyncio.wait_for(serving, 30) == Ending.STOPPED

    again = asyncio.create_task(worker.serve())
    await wait_until_async(lambda: worker.serving)
    worker.stop()
    assert await asyncio.wait_for(again, 30) == Ending.STOPPED


async def test_a_worker_that_serves_does_not_serve_a_second_time(url: str, registry: Registry) -> None:
    """Two that bear one id would give back each other's jobs after a broken connection. The first goes on."""
    worker = worker_for(url, registry)
    first = asyncio.create_task(worker.serve())
    await wait_until_async(lambda: worker.serving)
    with pytest.raises(ConfigurationError, match="serves already"):
        await worker.serve()
    assert worker.serving
    worker.stop()
    assert await asyncio.wait_for(first, 30) == Ending.STOPPED


async def test_run_inside_a_running_loop_says_what_to_do(url: str) -> None:
    """`serve()` is for that."""
    with pytest.raises(ConfigurationError, match="await worker"):
        Worker(url, {"default": 1}).run()


# ---- rows that others hold, rows that cannot be written


def test_a_row_locked_by_an_operator_does_not_hold_up_its_neighbours(
    engine: Engine, url: str, registry: Registry
) -> None:
    """The batch is written without it; its outcome follows when the lock is gone."""
    gate = threading.Event()

    @task(registry=registry, name="handler")
    async def handler(n: int) -> None:
        while not gate.is_set():
            await asyncio.sleep(0.001)

    ids = add(engine, *(enqueue(handler, n) for n in range(10)))
    with working(url, registry, queues={"default": 10}, lease=30):
        wait_until(lambda: all(job_of(engine, id).status == JobStatus.RUNNING for id in ids))
        with connect(url) as other, other.transaction():
            other.execute("SELECT 1 FROM sa_jobqueue.job WHERE id = %s FOR UPDATE", [ids[4]])
            gate.set()
            wait_until(lambda: finished(engine, *ids[:4], *ids[5:]))
            assert job_of(engine, ids[4]).status == JobStatus.RUNNING
        wait_until(lambda: finished(engine, ids[4]))


def test_one_outcome_that_cannot_be_written_fails_alone(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """A CHECK of the application's on our table refuses one row of a batch; the others complete, the log says which."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "ALTER TABLE sa_jobqueue.job ADD CONSTRAINT taste CHECK (args <> '{\"n\": 13}' OR status <> 'completed')"
            )
        )

    @task(registry=registry, name="handler")
    async def handler(n: int) -> None: ...

    try:
        ids = add(engine, *(enqueue(handler, n) for n in range(100)))
        with caplog.at_level(logging.ERROR):
            drain(url, registry, queues={"default": 100})
    finally:
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE sa_jobqueue.job DROP CONSTRAINT taste"))
    states = [job_of(engine, id).status for id in ids]
    assert states.count(JobStatus.COMPLETED) == 99
    bad = job_of(engine, ids[13])
    assert bad.status == JobStatus.FAILED
    assert "taste" in bad.errors[0]["message"]
    assert f"job {bad.id}" in caplog.text


def test_a_row_that_a_foreign_key_needs_stays_when_it_should_be_deleted(
    engine: Engine, url: str, registry: Registry
) -> None:
    """`retain=0` on a job that a business row references: completed and kept, its neighbours deleted."""

    @task(registry=registry, name="handler", retain=0)
    async def handler(n: int) -> None: ...

    ids = add(engine, *(enqueue(handler, n) for n in range(10)))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoice (job_id bigint REFERENCES sa_jobqueue.job)"))
        connection.execute(text("INSERT INTO invoice VALUES (:id)"), {"id": ids[3]})
    drain(url, registry, queues={"default": 10})
    with Session(engine) as session:
        assert [(job.id, job.status) for job in session.scalars(select(Job))] == [(ids[3], JobStatus.COMPLETED)]


# ---- what cannot begin


def test_a_worker_that_cannot_begin_says_why(engine: Engine, url: str, empty_database_url: str) -> None:
    """AUTOCOMMIT, another driver, no schema, no server, no queue."""
    registry = Registry()
    autocommit = create_engine(url, isolation_level="AUTOCOMMIT")
    with pytest.raises(AutocommitError):
        drain(autocommit, registry)
    autocommit.dispose()
    other = create_engine(driver_url(url, "psycopg2"))
    with pytest.raises(ConfigurationError, match="psycopg 3, not 'psycopg2'"):
        drain(other, registry)
    other.dispose()
    with pytest.raises(SchemaError, match="sa-jobqueue migrate"):
        drain(empty_database_url, registry)
    with pytest.raises(SchemaError, match="run `sa-jobqueue migrate --schema 'My Jobs'`"):
        drain(empty_database_url, registry, schema="My Jobs")
    with pytest.raises(DatabaseUnavailable):
        drain("postgresql://nobody:secret@localhost:1/none", registry)
    with pytest.raises(ConfigurationError, match="queues"):
        Worker(url, {})
    with pytest.raises(ConfigurationError, match="slots"):
        Worker(url, {"default": 0})
    with pytest.raises(ConfigurationError, match="'' cannot be the name of a schema"):
        Worker(url, {"default": 1}, schema="")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queues": ["mail"]}, r"queues are names with their slots, {'default': 10}, not \['mail'\]"),
        ({"database": create_async_engine("postgresql+psycopg://")}, "pass the AsyncEngine as async_engine="),
        ({"database": None}, "the database is a URL or an Engine, not None"),
        ({"async_engine": create_engine("postgresql+psycopg://")}, "async_engine is an AsyncEngine"),
        ({"database": create_engine("sqlite://")}, "the worker needs psycopg 3, not 'pysqlite'"),
        ({"database": create_engine("postgresql+asyncpg://")}, "the worker needs psycopg 3, not 'asyncpg'"),
        ({"registry": "shop"}, "registry is a Registry, not 'shop'"),
        ({"sessionmaker": 42}, r"sessionmaker is what SQLAlchemy's sessionmaker\(\) returns, not 42"),
        (
            {"sessionmaker": sessionmaker(twophase=True)},
            "sessionmaker has twophase=True: a job and its writes are one transaction",
        ),
        ({"sessionmaker": async_sessionmaker()}, "sessionmaker makes .*AsyncSession.* objects; a Session is expected"),
        (
            {"async_sessionmaker": sessionmaker()},
            "async_sessionmaker makes .*Session.* objects; an AsyncSession is expected",
        ),
        ({"settings": {"lease": 5}}, r"settings is a WorkerSettings, not {'lease': 5}"),
        (
            {"sessionmaker": scoped_session(sessionmaker())},
            "sessionmaker makes a Session for each job; .*session_factory",
        ),
        (
            {"async_sessionmaker": async_scoped_session(async_sessionmaker(), scopefunc=lambda: 1)},
            "async_sessionmaker makes a Session for each job; .*session_factory",
        ),
    ],
    ids=[
        "queues",
        "engine",
        "nothing",
        "async engine",
        "sqlite",
        "asyncpg",
        "registry",
        "sessionmaker",
        "two phases",
        "async one",
        "sync one",
        "settings",
        "scoped",
        "async scoped",
    ],
)
def test_a_wrong_argument_is_named_at_once(url: str, given: dict[str, Any], said: str) -> None:
    """When the Worker is made, before it connects; the message says what is expected."""
    with pytest.raises(ConfigurationError, match=said):
        Worker(**{"database": url, "queues": {"default": 1}, **given})


# ---- connections that break, waking up


def test_a_worker_outlives_its_connections(engine: Engine, database_url: str, url: str, registry: Registry) -> None:
    """All its backends are terminated, again and again, while it works: nothing is lost, nothing completed twice."""
    ran: list[int] = []

    @task(registry=registry, name="handler")
    async def handler(n: int) -> None:
        await asyncio.sleep(0.002)
        ran.append(n)

    with working(url, registry, queues={"default": 10}, lease=2) as worker:
        ids: list[int] = []
        for turn in range(5):
            seen = len(ran)
            ids += add(engine, *(enqueue(handler, n) for n in range(turn * 100, turn * 100 + 100)))
            wait_until(lambda seen=seen: len(ran) > seen + 10)
            engine.dispose()
            terminate_others(url)
        wait_until(lambda: finished(engine, *ids))
        assert set(ran) == set(range(500))
        assert worker.counts["completed"] <= 500
    with Session(engine) as session:
        assert {job.status for job in session.scalars(select(Job))} == {JobStatus.COMPLETED}


def test_an_idle_worker_is_woken_and_a_deaf_one_polls(engine: Engine, url: str, registry: Registry) -> None:
    """With LISTEN a job starts long before the next poll; without, polling finds it."""
    pooler.skip_where_deaf(url)
    started = threading.Event()

    @task(registry=registry, name="handler")
    async def handler() -> None:
        started.set()

    with working(url, registry, poll=60):
        wait_until(lambda: gate_is_open(url))
        add(engine, enqueue(handler))
        assert started.wait(30)
    started.clear()
    with working(url, registry, poll=0.2, listen=False):
        add(engine, enqueue(handler))
        assert started.wait(30)


def test_a_busy_worker_is_not_notified(engine: Engine, url: str) -> None:
    """The trigger is silent unless a gate is open."""
    with connect(url) as listener:
        oid: Any = listener.execute("SELECT 'sa_jobqueue.job'::regclass::oid").fetchone()
        listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"sa_jobqueue_{oid[0]}")))
        add(engine, enqueue("anything"))
        listener.execute("SELECT 1")
        assert list(listener.notifies(timeout=0)) == []
