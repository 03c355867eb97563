"""Async handlers that block their event loop: who notices, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, Job, Registry, RetryPolicy, enqueue, task
from sa_jobqueue.rules.lifecycle import FINISHED
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.worker import watchdog
from sa_jobqueue.worker.running import timeouts
from tests.support.waiting import PATIENCE, wait_until
from tests.support.working import add, job_of, services_of, working

NEVER = RetryPolicy(no_retry=(BaseException,))
WATCH = "sa-jobqueue watchdog"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What takes seconds elsewhere takes tenths of them here."""
    monkeypatch.setattr(watchdog, "_EVERY", 0.1)
    monkeypatch.setattr(watchdog, "_SILENT_CHECKS", 10)
    monkeypatch.setattr(timeouts, "_PATIENCE", 0.5)
    monkeypatch.setattr(timeouts, "_ASYNC_MARGIN", 0.2)
    caplog.set_level(logging.WARNING, "sa_jobqueue")


class Gate:
    """Where handlers block their loop until the test lets them go."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def block(self) -> None:
        self.reached.set()
        self.opened.wait(PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def wait_finished(engine: Engine, id: int) -> Job:
    wait_until(lambda: job_of(engine, id).status in FINISHED)
    return job_of(engine, id)


def assert_timed_out(job: Job) -> None:
    assert (job.status, job.attempt) == ("failed", 1)
    assert [error["type"] for error in job.errors] == ["sa_jobqueue.errors.HandlerTimeout"]


def test_the_log_names_the_job_that_blocks_the_loop_and_says_when_it_answers_again(
    engine: Engine, url: str, registry: Registry, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """Once each, however long it takes; without a timeout nothing else is done about it."""

    @task(registry=registry, name="blocks")
    async def blocks() -> None:
        gate.block()

    (id,) = add(engine, enqueue("blocks"))
    with working(url, registry) as worker:
        wait_until(lambda: services_of(worker).watchdog._silent > 20)
        (said,) = (record for record in caplog.records if "has not answered" in record.getMessage())
        assert f"job {id} (blocks) blocks it" in said.getMessage()
        assert said.__dict__["job_id"] == id
        gate.opened.set()
        wait_until(lambda: "answers again, after" in caplog.text)
        assert wait_finished(engine, id).status == "completed"
    assert caplog.text.count("has not answered") == caplog.text.count("answers again") == 1
    assert "goes on blocking" not in caplog.text


@pytest.mark.parametrize("way", ["returns", "raises", "waits", "looks"])
def test_a_handler_that_blocks_the_loop_past_its_timeout_is_given_up_and_may_come_back(
    engine: Engine, url: str, registry: Registry, gate: Gate, way: str
) -> None:
    """Its attempt fails while it blocks, and `def` jobs go on. What it does later counts for nothing; its slot is free,
    and the job that its runner takes next is not disturbed.
    """
    again: list[bool] = []

    @task(registry=registry, name="blocks", timeout=2, retry=NEVER)  # it has to come as far as to the gate
    async def blocks(ctx: AsyncJobContext) -> None:
        ctx.session.add(enqueue("written"))
        await ctx.session.flush()
        gate.block()
        if way == "looks" and ctx.cancelled:
            return
        if way == "raises":
            raise ValueError("too late")
        if way == "waits":
            await asyncio.sleep(60)

    @task(registry=registry, name="threads")
    def threads() -> None: ...

    @task(registry=registry, name="next")
    async def next_handler() -> None:
        for _ in range(5):
            await asyncio.sleep(0.01)
        again.append(True)

    (late,) = add(engine, enqueue("blocks"))
    with working(url, registry, queues={"default": 2, "threads": 1}, hoard=60) as worker:
        assert gate.reached.wait(PATIENCE)
        services = services_of(worker)
        (behind,) = add(engine, enqueue("next"))
        wait_until(lambda: worker.state().queues["default"].waiting == 1)
        assert_timed_out(wait_finished(engine, late))
        (beside,) = add(engine, Job(task="threads", queue="threads"))
        assert wait_finished(engine, beside).status == "completed"
        assert services.watchdog.blocked
        assert worker.state().queues["default"].stuck == 1
        gate.opened.set()
        job = wait_finished(engine, behind)
        assert (job.status, job.attempt) == ("completed", 1)
        wait_until(
            lambda: [slots.running for slots in services.all_slots.values()] == [0, 0] and not len(services.runs)
        )
        assert worker.state().queues["default"].stuck == 0
        assert not services.watchdog.blocked
    assert again == [True]
    with Session(engine) as session:
        assert session.query(Job).filter_by(task="written").count() == 0
    assert_timed_out(job_of(engine, late))


@pytest.mark.parametrize("way", ["itself", "by a task of its own"])
def test_serve_in_the_users_loop_only_warns_of_a_blocking_handler(
    engine: Engine, url: str, registry: Registry, gate: Gate, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """The process is not the worker's to end; and when the handler comes back, so does the worker."""

    @task(registry=registry, name="blocks", timeout=0.3, retry=NEVER)
    async def blocks() -> None:
        async def part() -> None:
            gate.block()

        await (part() if way == "itself" else asyncio.create_task(part()))

    @task(registry=registry, name="next")
    async def next_handler() -> None: ...

    (late,) = add(engine, enqueue("blocks"))
    with working(url, registry, queues={"default": 1}) as worker:
        assert gate.reached.wait(PATIENCE)
        wait_until(lambda: "until this process is restarted" in caplog.text)
        assert ("part() running" if way != "itself" else f"job {late} (blocks) blocks it") in caplog.text
        gate.opened.set()
        (left,) = add(engine, enqueue("next"))
        assert wait_finished(engine, left).status == "completed"
        assert worker.serving
    assert caplog.text.count("goes on blocking") == 1
    assert_timed_out(job_of(engine, late))


def test_a_job_that_may_take_its_time_is_not_ended_for_others_that_time_out_behind_it(
    engine: Engine, url: str, registry: Registry, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """It would begin again in the next process, and block that one."""
    waits = threading.Event()

    @task(registry=registry, name="blocks")
    async def blocks() -> None:
        gate.block()

    @task(registry=registry, name="waits", timeout=0.3, retry=NEVER)
    async def waits_behind() -> None:
        waits.set()
        await asyncio.sleep(60)

    with working(url, registry) as worker:
        (late,) = add(engine, enqueue("waits"))
        assert waits.wait(PATIENCE)
        (may,) = add(engine, enqueue("blocks"))
        assert_timed_out(wait_finished(engine, late))
        wait_until(lambda: services_of(worker).watchdog._silent > 20)
        gate.opened.set()
        assert wait_finished(engine, may).status == "completed"
    assert "goes on blocking" not in caplog.text


def test_a_cancelled_handler_that_does_not_block_has_time_to_clean_up(
    engine: Engine, url: str, registry: Registry, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the loop answers, the short margin of those that block it is not for the others."""

    monkeypatch.setattr(timeouts, "_CLEANUP", 60.0)

    @task(registry=registry, name="ignores", timeout=0.1, retry=NEVER)
    async def ignores() -> None:
        while not gate.opened.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                gate.reached.set()

    (id,) = add(engine, enqueue("ignores"))
    with working(url, registry, queues={"default": 1}) as worker:
        assert gate.reached.wait(PATIENCE)
        ticks: list[float] = []
        wait_until(lambda: ticks.append(services_of(worker).watchdog._asked_at) or len(set(ticks)) > 10)  # type: ignore[func-returns-value]
        assert (job_of(engine, id).status, worker.state().queues["default"].stuck) == ("running", 0)
        gate.opened.set()
        assert wait_finished(engine, id).status == "completed"


def test_a_silent_service_connection_is_cut_off_while_the_loop_is_blocked(
    engine: Engine,
    url: str,
    registry: Registry,
    gate: Gate,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one goes on with the jobs that need no loop."""
    silent: list[bool] = []
    send = default_store.send_exchange

    def wait_for_nobody(connection: Connection, changes: Any, request: ClaimRequest) -> Any:
        if gate.reached.is_set() and not silent:
            silent.append(True)
            connection.execute(text("SELECT pg_sleep(9)"))
        return send(connection, changes, request)

    @task(registry=registry, name="blocks")
    async def blocks() -> None:
        gate.block()

    @task(registry=registry, name="threads")
    def threads() -> None: ...

    monkeypatch.setattr(default_store, "send_exchange", wait_for_nobody)
    add(engine, enqueue("blocks"))
    with working(url, registry, lease=60, listen=False) as worker:
        services_of(worker).claimer.deadline._limit = 0.3
        assert gate.reached.wait(PATIENCE)
        (beside,) = add(engine, enqueue("threads"))
        assert wait_finished(engine, beside).status == "completed"
        assert "a service connection has been silent for 0.3 s" in caplog.text
        assert silent
        assert not gate.opened.is_set()
        gate.opened.set()


def test_nothing_is_left_that_watches_when_the_worker_has_ended(engine: Engine, url: str, registry: Registry) -> None:
    """In the user's own loop, where the process goes on."""
    with working(url, registry):
        wait_until(lambda: WATCH in (thread.name for thread in threading.enumerate()))
    assert WATCH not in [thread.name for thread in threading.enumerate()]
