"""A run whose job is gone while another job has its id: after a failover that lost the last ids, or a TRUNCATE."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, JobContext, JobStatus, Registry, enqueue, task
from sa_jobqueue.worker.running.run import Stop
from tests.support.nightly import crossed
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import add_one, job_of, renew_now, services_of, working

_NOTE = text("INSERT INTO note VALUES (:said)")


class Runs:
    """The runs of a task, each of which waits for its gate, and notes its name through its session or does not."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.gates = {1: threading.Event(), 2: threading.Event()}
        self.returned: set[int] = set()

    def register(self, registry: Registry, kind: str, *, writes: bool) -> None:
        def write(session: Session, run: int) -> None:
            if writes:
                session.execute(_NOTE, {"said": f"run {run}"})

        @task(registry=registry, name="def")
        def on_thread(ctx: JobContext) -> None:
            run = len(self.began) + 1
            write(ctx.session, run)
            self.began.append(run)
            self.gates[run].wait(60)
            self.returned.add(run)

        @task(registry=registry, name="async def")
        async def on_loop(ctx: AsyncJobContext) -> None:
            run = len(self.began) + 1
            await ctx.session.run_sync(write, run)
            self.began.append(run)
            try:
                await wait_until_async(self.gates[run].is_set)
            except asyncio.CancelledError:  # it does not let itself be stopped
                await wait_until_async(self.gates[run].is_set)
            self.returned.add(run)


def truncate(engine: Engine) -> None:
    """Let the next job have the number of the first."""
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE sa_jobqueue.job RESTART IDENTITY"))


def notes(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT said FROM note")))


@pytest.mark.parametrize(("writes", "kind"), crossed([True, False], ["def", "async def"]))
def test_a_stale_run_never_completes_another_job_that_has_its_jobs_number(
    engine: Engine, database_url: str, url: str, kind: str, writes: bool
) -> None:
    """The same worker claims that job while the stale run goes on: it ends by its own run, and only what that wrote is kept."""
    registry, runs = Registry(), Runs()
    runs.register(registry, kind, writes=writes)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (said text)"))
    with working(url, registry) as worker:
        services = services_of(worker)
        gone = add_one(engine, enqueue(kind))
        wait_until(lambda: runs.began == [1])
        truncate(engine)
        assert add_one(engine, enqueue(kind)) == gone
        wait_until(lambda: runs.began == [1, 2])
        runs.gates[1].set()
        wait_until(lambda: runs.returned == {1})
        wait_until(lambda: len(services.runs.all()) == 1)
        assert (job_of(engine, gone).status, notes(engine)) == (JobStatus.RUNNING, [])
        runs.gates[2].set()
        wait_until(lambda: job_of(engine, gone).status == JobStatus.COMPLETED)
    assert notes(engine) == (["run 2"] if writes else [])
    assert worker.counts == {"completed": 1, "lost": 1}


@pytest.mark.parametrize("raised", [None, ValueError("no")], ids=["returns", "raises"])
def test_a_run_that_was_told_that_its_claim_is_lost_writes_nothing(
    engine: Engine, url: str, raised: Exception | None
) -> None:
    """Not even where the fence would let it."""
    registry, told, began, restored = Registry(), threading.Event(), threading.Event(), threading.Event()

    @task(registry=registry, name="lost")
    def lost(ctx: JobContext) -> None:
        began.set()
        wait_until(lambda: any(run.stop is Stop.LOST for run in services_of(worker).runs.all()))
        told.set()
        restored.wait(60)
        if raised is not None:
            raise raised

    with working(url, registry) as worker:
        services = services_of(worker)
        id = add_one(engine, enqueue("lost"))
        wait_until(began.is_set)
        (run,) = services.runs.all()
        with engine.begin() as connection:
            connection.execute(text("UPDATE sa_jobqueue.job SET claim_token = 0"))
        renew_now(worker)
        wait_until(told.is_set)
        with engine.begin() as connection:
            back = text("UPDATE sa_jobqueue.job SET claim_token = :token")
            connection.execute(back, {"token": run.job.claim_token})
        restored.set()
        wait_until(lambda: not services.runs.all())
        assert job_of(engine, id).status == JobStatus.RUNNING
    assert worker.counts == {"lost": 1}
