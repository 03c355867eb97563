"""Timeouts that maintenance sees to: whatever the handler does meanwhile, the attempt has failed by its timeout."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, Job, JobContext, Registry, RetryPolicy, enqueue, task
from sa_jobqueue.lifecycle import FINISHED
from sa_jobqueue.outcomes import Outcome
from sa_jobqueue.worker import lookout, maintenance
from sa_jobqueue.worker.executor import Executor
from sa_jobqueue.worker.flight import Flight
from tests.support.waiting import wait_until
from tests.support.working import crew_of, job_of, working

NEVER = RetryPolicy(no_retry=(BaseException,))


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What takes seconds elsewhere takes tenths of them here."""
    monkeypatch.setattr(lookout, "_LOOK", 0.1)
    monkeypatch.setattr(maintenance, "_ASYNC_MARGIN", 0.2)
    caplog.set_level(logging.WARNING, "sa_jobqueue")


def add(engine: Engine, *jobs: Job) -> list[int]:
    with Session(engine) as session:
        session.add_all(jobs)
        session.commit()
        return [job.id for job in jobs]


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

    def come_last(self: Executor, flight: Flight, outcome: Outcome | None) -> bool:
        # Was the handler told before its attempt is given up? Then it comes back before that, too.
        wait_until(lambda: flight.stop is None or flight.settled)
        return give_up(self, flight, outcome)

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
        crew = crew_of(worker)
        wait_until(lambda: not crew.lanes["default"].running and not len(crew.flights))
        assert crew.lanes["default"].stuck == 0
        assert worker.counts == {"fail": 1}
