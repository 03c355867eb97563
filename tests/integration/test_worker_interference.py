"""A worker goes on: when its loop is left, cancels come late, locks are held, and filters of logs raise."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from datetime import timedelta
from queue import SimpleQueue
from time import monotonic
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Connection, Engine, func, insert, text

from sa_jobqueue import Job, JobStatus, Registry, enqueue, enqueue_many, task
from sa_jobqueue.errors import ConfigurationError, WorkerBroken
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.rules.lifecycle import Change
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import release_jobs
from sa_jobqueue.worker import watchdog
from sa_jobqueue.worker.process.inside import Ending
from sa_jobqueue.worker.running.run import Run
from sa_jobqueue.worker.running.runners import Runners
from sa_jobqueue.worker.running.slots import Slots
from tests.support import pooler
from tests.support.databases import connect, terminate_others
from tests.support.factory import make_job
from tests.support.nightly import crossed
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, job_of, services_of, statuses, worker_for, working

# ---- the event loop


def test_a_drain_that_was_cut_short_says_so(engine: Engine, url: str, registry: Registry) -> None:
    """Not as one that has found nothing more to do: a script would go on with half the work done."""
    worker = worker_for(url, registry, queues={"default": 1})

    @task(registry=registry, name="cut")
    def cut() -> None:
        worker.stop()

    add(engine, enqueue(cut), enqueue(cut))
    assert worker.run(until_idle=True) == Ending.INTERRUPTED


def test_a_worker_does_not_begin_where_gevent_has_patched_the_threads(
    url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run nothing, and hear no signal."""
    patched = SimpleNamespace(is_module_patched=lambda name: name == "threading")
    monkeypatch.setitem(sys.modules, "gevent.monkey", cast(ModuleType, patched))
    with pytest.raises(ConfigurationError, match=r"gevent .* has patched the threads of this process"):
        worker_for(url, registry).run(until_idle=True)


@pytest.mark.parametrize("leave", [SystemExit(0), KeyboardInterrupt(), "stop"], ids=["exit", "interrupt", "stop"])
def test_a_task_of_a_handlers_that_leaves_the_event_loop_fails_its_own_job_alone(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, leave: Any
) -> None:
    """As a parser of arguments does it, which calls `sys.exit`, in a task that the handler awaits."""
    left = threading.Event()

    @task(registry=registry, name="leaves", max_attempts=1)
    async def leaves() -> None:
        async def part() -> None:
            left.set()
            if leave == "stop":
                asyncio.get_running_loop().stop()
            else:
                raise leave

        await asyncio.gather(part())

    @task(registry=registry, name="neighbour", max_attempts=1, rescue=False)
    async def neighbour() -> None:
        while not left.is_set():
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)

    ids = add(engine, enqueue(neighbour), enqueue(leaves), enqueue(neighbour))
    assert worker_for(url, registry).run(until_idle=True) == Ending.STOPPED
    ended = JobStatus.COMPLETED if leave == "stop" else JobStatus.FAILED
    assert statuses(engine, Job.id.in_(ids)) == [JobStatus.COMPLETED, ended, JobStatus.COMPLETED]
    assert "left the event loop" in caplog.text
    if leave != "stop":
        assert job_of(engine, ids[1]).errors[0]["type"].endswith(type(leave).__name__)


def test_cancels_that_come_after_a_handlers_end_cost_no_slot(engine: Engine, url: str, registry: Registry) -> None:
    """A handler has left a watchdog behind. It cancels the task in which that handler ran, and in which other jobs run by now."""

    @task(registry=registry, name="watched", max_attempts=1)
    async def watched() -> None:
        runner = asyncio.current_task()
        assert runner is not None
        until = monotonic() + 0.01
        while monotonic() < until:  # long enough for its runner to let others go on
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(runner.cancel)

    ids = add(engine, *(enqueue(watched) for _ in range(40)))
    with working(url, registry, queues={"default": 3}) as worker:
        wait_until(lambda: not {JobStatus.QUEUED, JobStatus.RUNNING} & set(statuses(engine, Job.id.in_(ids))))
        wait_until(lambda: worker.state().queues["default"].running == 0)


def test_a_child_that_a_handler_forks_heeds_signals_as_ever() -> None:
    """`Process.terminate()` of multiprocessing ends it."""
    script = """
        import os, signal
        from sa_jobqueue.worker.process.signals import hearing_signals

        with hearing_signals(lambda number: print("heard", flush=True) or 60.0, lambda: None):
            child = os.fork()
            if child == 0:
                print("ready", flush=True)
                while True:
                    signal.pause()
            os.kill(int(input()) and child, signal.SIGTERM)
            print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            input()
    """
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("1\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{signal.SIGTERM.value}\n"
        assert process.stdout.readline() == "heard\n"
        process.stdin.write("\n")


# ---- locks


def test_a_suspect_that_is_locked_when_it_should_go_back_goes_back_later(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that did not see ours locks the row for a moment. The job was not begun, and no worker has died."""
    running, release = threading.Event(), threading.Event()
    answers: list[Answer] = []
    real = default_store.apply

    def apply(connection: Connection, changes: Sequence[Change], **options: Any) -> dict[int, Answer]:
        if answers:
            return real(connection, changes, **options)
        with engine.begin() as other:
            other.execute(text("SELECT id FROM sa_jobqueue.job FOR NO KEY UPDATE"))
            found = real(connection, changes, **options)
        answers.extend(found.values())
        return found

    @task(registry=registry, name="suspect")
    def suspect() -> None:
        running.set()
        release.wait(60)

    with engine.begin() as connection:
        ids = [make_job(connection, task="suspect", rescues=2) for _ in range(2)]
    monkeypatch.setattr(default_store, "apply", apply)
    with working(url, registry, queues={"default": 2}, lease=60):
        wait_until(running.is_set)
        wait_until(lambda: sorted(statuses(engine, Job.id.in_(ids))) == [JobStatus.QUEUED, JobStatus.RUNNING])
        release.set()
    assert answers == [Answer.LOCKED]
    assert [job_of(engine, id).rescues for id in ids] == [2, 2]


def test_a_locked_worker_row_does_not_keep_others_from_rescuing(engine: Engine, url: str, registry: Registry) -> None:
    """An operator looks at a worker that is gone, in a transaction that stays open."""

    @task(registry=registry, name="rescued")
    def rescued() -> None: ...

    with engine.begin() as connection:
        gone = {"id": "00000000-0000-0000-0000-000000000001", "queues": ["default"], "host": "a", "pid": 1}
        long_ago = func.now() - timedelta(days=2)
        values = {**gone, "concurrency": 1, "version": "1", "seen_at": long_ago, "started_at": long_ago}
        connection.execute(insert(WorkerRow).values(values))
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE sa_jobqueue.worker IN SHARE ROW EXCLUSIVE MODE"))
        with working(url, registry, lease=1.0):
            with engine.begin() as other:
                expired = timedelta(seconds=-1)
                id = make_job(other, "running", task="rescued", claims=1, lease_expires_at=expired)
            wait_until(lambda: job_of(engine, id).status == JobStatus.COMPLETED)
    assert job_of(engine, id).rescues == 1


# ---- waking


@pytest.mark.parametrize(("poll", "holds"), [(0.1, 4.0), (10.0, 25.0), (600.0, 50.0)])
def test_a_request_to_be_woken_holds_until_the_next_look(
    engine: Engine, url: str, registry: Registry, poll: float, holds: float
) -> None:
    """However rarely it polls. (Not for much more than a minute: a worker that was killed cannot take it back.)"""
    pooler.skip_where_deaf(url)

    def open_for() -> float:
        with connect(url) as connection:
            row: Any = connection.execute(
                "SELECT pg_sequence_last_value('sa_jobqueue.gate_any') - extract(epoch FROM clock_timestamp())::float8"
            ).fetchone()
            return row[0] or 0.0

    with working(url, registry, poll=poll) as worker:
        wait_until(lambda: open_for() > 0)
        assert holds < open_for() < 65
        look = services_of(worker).claimer._demand.timers["default"]
        wait_until(lambda: look.at - monotonic() < open_for() - 1)


# ---- logging


@pytest.mark.parametrize(("error", "part"), crossed([ValueError, SystemExit], ["claimer", "maintenance", "listener"]))
def test_a_filter_of_logs_that_raises_ends_no_thread_of_the_worker(
    engine: Engine, database_url: str, url: str, registry: Registry, part: str, error: type[BaseException]
) -> None:
    """It meets the records that say that the connection broke, and that it is there again."""
    pooler.skip_where_deaf(url)
    raised: list[str] = []

    def wrong(record: logging.LogRecord) -> bool:
        raised.append(record.msg)
        raise error("a filter that is wrong")

    @task(registry=registry, name="handler")
    def handler() -> None: ...

    rooms = {"claimer": "claiming.connection", "maintenance": "maintenance.loop", "listener": "connections.listener"}
    filtered = logging.getLogger(f"sa_jobqueue.worker.{rooms[part]}")
    filtered.addFilter(wrong)
    try:
        with working(url, registry, lease=1.0) as worker:
            services = services_of(worker)
            add_one(engine, enqueue(handler))
            wait_until(lambda: worker.counts["completed"] == 1)
            engine.dispose()
            wait_until(lambda: terminate_others(url) or raised)
            id = add_one(engine, enqueue(handler))
            wait_until(lambda: job_of(engine, id).status == JobStatus.COMPLETED)
            wait_until(lambda: worker.state().listening)
            assert services.ended_part() is None
    finally:
        filtered.removeFilter(wrong)


def test_a_filter_of_logs_that_raises_does_not_end_the_watch(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It meets the records that say that the event loop is blocked, and that it answers again."""
    monkeypatch.setattr(watchdog, "_EVERY", 0.02)
    raised: list[str] = []
    go = threading.Event()

    def wrong(record: logging.LogRecord) -> bool:
        raised.append(record.msg)
        raise SystemExit("a filter that is wrong")

    @task(registry=registry, name="blocks")
    async def blocks() -> None:
        go.wait(30)

    filtered = logging.getLogger("sa_jobqueue.worker.watchdog")
    filtered.addFilter(wrong)
    try:
        with working(url, registry) as worker:
            for _ in range(2):
                before = len(raised)
                go.clear()
                add_one(engine, enqueue(blocks))
                wait_until(lambda before=before: len(raised) == before + 1)  # type: ignore[misc]
                go.set()
                wait_until(lambda before=before: len(raised) == before + 2)  # type: ignore[misc]
            assert services_of(worker).ended_part() is None
    finally:
        go.set()
        filtered.removeFilter(wrong)


def test_a_filter_of_logs_that_raises_keeps_no_claimed_job_from_running(
    engine: Engine, url: str, registry: Registry
) -> None:
    """It meets the record that says that a claim was taken away: those that were claimed with the job would be held, their leases
    renewed, and never be started. And the one that names an unknown task, whose job would be claimed without end.
    """
    raised, go = [], threading.Event()

    def wrong(record: logging.LogRecord) -> bool:
        raised.append(record.msg)
        raise SystemExit("a filter that is wrong")

    @task(registry=registry, name="waits")
    def waits() -> None:
        go.wait(30)

    filtered = logging.getLogger("sa_jobqueue.worker.claiming.intake")
    filtered.addFilter(wrong)
    try:
        # No renewal comes meanwhile, which would notice first that the claim is gone.
        with working(url, registry, queues={"default": 5}, lease=60.0) as worker:
            (id,) = add(engine, enqueue(waits))
            wait_until(lambda: worker.state().running == 1)
            with engine.begin() as connection:
                connection.execute(release_jobs(Job.id == id))
                connection.execute(enqueue_many([waits.call(), waits.call()]))
            wait_until(lambda: len(raised) == 1)
            add(engine, enqueue("nowhere"), enqueue(waits))
            go.set()
            wait_until(lambda: worker.counts["completed"] == 4 and not services_of(worker).runs.all())
            assert len(raised) == 2
    finally:
        go.set()
        filtered.removeFilter(wrong)


class Interrupted:
    """A queue of tickets whose `get` is interrupted when it has taken one: each second time."""

    def __init__(self, tickets: SimpleQueue[None]) -> None:
        self.put, self._get, self.interruptions = tickets.put, tickets.get, 0

    def get(self) -> None:
        self._get()
        self.interruptions += 1
        if self.interruptions % 2:
            raise TimeoutError("too late")


def test_an_exception_that_comes_to_a_thread_too_late_keeps_no_job_from_running(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Some libraries end a handler so, from another thread; it may have ended by then, and its thread waits for the next job.

    Here the queue raises it. Set on a thread that waits, the exception lets CPython 3.11 spin for ever under coverage.
    """

    @task(registry=registry, name="runs")
    def runs() -> None: ...

    with working(url, registry, queues={"default": 1}) as worker:
        runners = services_of(worker).runners
        tickets = Interrupted(runners._tickets)
        runners._tickets = cast("Any", tickets)
        for number in range(1, 4):
            add(engine, enqueue(runs))
            wait_until(lambda number=number: worker.counts["completed"] == number)  # type: ignore[misc]
            wait_until(lambda: not worker.state().running)
    assert tickets.interruptions >= 2


def test_a_thread_that_is_interrupted_between_two_jobs_gives_its_slot_back(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that it has run keeps its outcome; the next one runs."""
    following, interrupted = Runners._following, []

    def interrupt(self: Runners, run: Run, slots: Slots, running: list[Run] | None = None) -> Run | None:
        if not interrupted:
            interrupted.append(run)
            raise SystemExit("too late")
        return following(self, run, slots, running)

    @task(registry=registry, name="runs")
    def runs() -> None: ...

    monkeypatch.setattr(Runners, "_following", interrupt)
    with working(url, registry, queues={"default": 1}) as worker:
        ids = add(engine, enqueue(runs), enqueue(runs))
        wait_until(lambda: worker.counts["completed"] == 2)
        wait_until(lambda: not worker.state().running)
    assert statuses(engine, Job.id.in_(ids)) == [JobStatus.COMPLETED] * 2


class OutOfOrder(threading.Event):
    """Ends each thread that asks it."""

    def wait(self, timeout: float | None = None) -> bool:
        raise SystemExit("out of order")

    is_set = wait


@pytest.mark.parametrize("part", ["claimer", "maintenance", "listener", "watchdog"])
def test_a_worker_ends_with_an_error_if_one_of_its_threads_ends(
    engine: Engine, url: str, registry: Registry, part: str
) -> None:
    """Otherwise it would look alive while no thread renews its leases, for example."""
    pooler.skip_where_deaf(url)

    def fail() -> float:
        raise SystemExit("out of order")

    def go_on() -> None:
        with working(url, registry, grace=0.1) as worker:
            services = services_of(worker)
            if part in {"claimer", "maintenance"}:
                getattr(services, part)._pause = fail
            else:
                listener = services.listener
                assert listener is not None
                wait_until(lambda: listener._waker is not None)  # it sleeps, or is about to
                getattr(services, part)._end = OutOfOrder()
                assert listener._waker is not None
                listener._waker.send(b".")
            wait_until(lambda: not worker.serving)

    with pytest.raises(WorkerBroken, match=r"SystemExit\('out of order'\)"):
        go_on()


@pytest.mark.parametrize("part", ["claimer", "maintenance", "listener", "watchdog"])
def test_a_worker_that_cannot_start_a_thread_leaves_none_behind(
    database_url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Else those that did start would go on claiming jobs in the application, although `serve()` has raised."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == f"sa-jobqueue {part}":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = set(threading.enumerate())
    worker = worker_for(database_url, registry)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        asyncio.run(worker.serve())
    assert not worker.serving
    wait_until(lambda: set(threading.enumerate()) <= before)
