"""Timeouts that maintenance sees to: whatever the handler does meanwhile, the attempt has failed by its timeout."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, Job, JobContext, Registry, RetryPolicy, enqueue, task
from sa_jobqueue.rules.lifecycle import FINISHED
from sa_jobqueue.rules.outcomes import Outcome
from sa_jobqueue.worker import watchdog
from sa_jobqueue.worker.process.inside import Ending
from sa_jobqueue.worker.running import timeouts
from sa_jobqueue.worker.running.attempt_end import Lost
from sa_jobqueue.worker.running.executor import Executor
from sa_jobqueue.worker.running.run import Run
from tests.support.waiting import PATIENCE, wait_until
from tests.support.working import add, job_of, services_of, worker_for, working

NEVER = RetryPolicy(no_retry=(BaseException,))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What takes seconds elsewhere takes tenths of them here."""
    monkeypatch.setattr(watchdog, "_EVERY", 0.1)
    monkeypatch.setattr(timeouts, "_ASYNC_MARGIN", 0.2)
    monkeypatch.setattr(timeouts, "_CLEANUP", 0.5)
    caplog.set_level(logging.WARNING, "sa_jobqueue")


def assert_times_out(engine: Engine, id: int) -> None:
    wait_until(lambda: job_of(engine, id).status in FINISHED)
    job = job_of(engine, id)
    assert (job.status, job.attempt, job.rescues) == ("failed", 1, 0)
    assert [error["type"] for error in job.errors] == ["sa_jobqueue.errors.HandlerTimeout"]


@pytest.mark.parametrize("name", ["on a thread", "on a blocked loop"])
def test_a_handler_that_returns_as_soon_as_it_sees_its_timeout_has_timed_out(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What it was told to do must not make its attempt end without an outcome."""
    give_up = Executor.give_up

    def come_last(self: Executor, run: Run, outcome: Outcome | Lost, note: str = "") -> bool:
        # Was the handler told before its attempt is given up? Then it comes back before that, too.
        wait_until(lambda: run.stop is None or run.settled)
        return give_up(self, run, outcome, note)

    @task(registry=registry, name="on a thread", timeout=0.2, retry=NEVER)
    def on_a_thread(ctx: JobContext) -> None:
        wait_until(lambda: ctx.cancelled)

    @task(registry=registry, name="on a blocked loop", timeout=0.2, retry=NEVER)
    async def on_a_blocked_loop(ctx: AsyncJobContext) -> None:
        wait_until(lambda: ctx.cancelled)

    monkeypatch.setattr(Executor, "give_up", come_last)
    (id,) = add(engine, enqueue(name))
    with working(url, registry) as worker:
        assert_times_out(engine, id)
        services = services_of(worker)
        wait_until(lambda: not worker.state().queues["default"].running and not len(services.runs))
        assert worker.state().queues["default"].stuck == 0
        wait_until(lambda: worker.counts == {"failed": 1})


@pytest.mark.parametrize("name", ["cleans up for ever", "ignores its cancel"])
def test_an_async_handler_that_does_not_end_when_its_timeout_cancels_it_has_timed_out(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Its attempt is given up after a while. It is cancelled once more; as long as it stays, its slot is stuck."""
    cancels: list[bool] = []
    gate = asyncio.Event()

    @task(registry=registry, name="cleans up for ever", timeout=0.1, retry=NEVER)
    async def cleans_up_for_ever(ctx: AsyncJobContext) -> None:
        ctx.session.add(enqueue("written"))
        try:
            await ctx.session.flush()  # on a busy machine this is where the timeout finds it
            await asyncio.Event().wait()
        finally:
            cancels.append(ctx.cancelled)
            await asyncio.Event().wait()

    @task(registry=registry, name="ignores its cancel", timeout=0.1, retry=NEVER)
    async def ignores_its_cancel(ctx: AsyncJobContext) -> None:
        ctx.session.add(enqueue("written"))
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                cancels.append(ctx.cancelled)

    @task(registry=registry, name="next")
    async def following() -> None:
        await asyncio.sleep(0)

    (id,) = add(engine, enqueue(name))
    with working(url, registry, queues={"default": 2}) as worker:
        services = services_of(worker)
        slots = services.all_slots["default"]
        assert_times_out(engine, id)
        assert "it was cancelled, and does not come to its end" in caplog.text
        if name == "ignores its cancel":
            wait_until(lambda: cancels == [False, True])
            assert (slots.running, slots.stuck) == (1, 1)
            services.runs._loop.call_soon_threadsafe(gate.set)
        wait_until(lambda: (slots.running, slots.stuck) == (0, 0))
        behind = add(engine, *(enqueue("next") for _ in range(5)))
        wait_until(lambda: all(job_of(engine, one).status == "completed" for one in behind))
        wait_until(lambda: worker.counts == {"failed": 1, "completed": 5})
    with Session(engine) as session:
        assert session.query(Job).filter_by(task="written").count() == 0
    assert "CancelledError" not in caplog.text
    assert_times_out(engine, id)


def test_a_worker_whose_slots_are_all_stuck_in_async_handlers_asks_to_be_restarted(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """As where threads hold them."""
    gate = asyncio.Event()

    @task(registry=registry, name="ignores", timeout=0.1, retry=NEVER)
    async def ignores() -> None:
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    async def serve() -> Ending:
        try:
            return await worker.serve()
        finally:
            gate.set()

    (id,) = add(engine, enqueue(ignores))
    worker = worker_for(url, registry, queues={"default": 1})
    assert asyncio.run(asyncio.wait_for(serve(), PATIENCE)) is Ending.RECYCLE
    assert "all 1 slots of queue 'default' are held by handlers that timed out" in caplog.text
    assert_times_out(engine, id)


def test_a_timed_out_attempt_fails_though_the_tasks_rules_raise(engine: Engine, url: str, registry: Registry) -> None:
    """Otherwise the job would stay running, and its lease be renewed, for as long as the worker lives."""

    class Odd(type):
        def __instancecheck__(cls, instance: object) -> bool:
            raise LookupError("no such thing")

    class Never(Exception, metaclass=Odd):
        pass

    end = threading.Event()

    @task(registry=registry, name="stays", timeout=0.2, max_attempts=1, retry=RetryPolicy(no_retry=(Never,)))
    def stays() -> None:
        end.wait(PATIENCE)

    (id,) = add(engine, enqueue(stays))
    with working(url, registry) as worker:
        try:
            wait_until(lambda: job_of(engine, id).status in FINISHED)
        finally:
            end.set()
        wait_until(lambda: worker.state().stuck == 0)
    job = job_of(engine, id)
    assert (job.status, [error["type"] for error in job.errors]) == ("failed", ["OutcomeNotMade"])
