"""sa_jobqueue itself, as the driver's own environment has it: a worker process with uvloop, as `sa-jobqueue work` runs it."""

from __future__ import annotations

import time

from common import SERVER, Peer, Way, mark
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, Registry, Worker, enqueue_many, task
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.util.urls import database_url
from sa_jobqueue.worker.process.inside import tune_gc

SLOTS = {"async": 100, "sync": 16}
KEPT = "jobs are kept; gc as `sa-jobqueue work` sets it"

PEER = Peer(
    name="sa_jobqueue",
    broker="postgresql",
    packages=("sa_jobqueue", "SQLAlchemy", "psycopg", "psycopg-binary", "uvloop"),
    ways={
        "async": Way("async", f"psycopg's C part, uvloop, queue of {SLOTS['async']} slots; {KEPT}"),
        "sync": Way("sync", f"psycopg's C part, uvloop, queue of {SLOTS['sync']} slots: threads; {KEPT}"),
        "steps": Way(
            "steps",
            f"psycopg's C part, uvloop, queue of {SLOTS['async']} slots; each step is a commit; {KEPT}",
            jobs=3_000,
        ),
    },
    unfinished="SELECT (SELECT count(*) FROM (SELECT FROM sa_jobqueue.job WHERE status = 'queued' AND concurrency_key IS NULL LIMIT 1)) "
    "+ (SELECT count(*) FROM (SELECT FROM sa_jobqueue.job WHERE status = 'running' LIMIT 1))",
    finished="SELECT count(*) FROM sa_jobqueue.job WHERE status = 'completed'",
    jobs=150_000,
    bulk="enqueue_many of 10,000 in one transaction each",
)

registry = Registry()


@task(registry=registry, name="nothing")
async def nothing(n: int) -> None:
    mark(n)


@task(registry=registry, name="nothing_sync")
def nothing_sync(n: int) -> None:
    mark(n)


async def increment(n: int) -> int:
    return n + 1


@task(registry=registry, name="ten_steps")
async def ten_steps(ctx: AsyncJobContext, n: int) -> None:
    value = n
    for _ in range(10):
        value = await ctx.step("increment", increment, value)
    mark(n)


TASKS = {"async": nothing, "sync": nothing_sync, "steps": ten_steps}


def fill(way: str, jobs: int) -> float:
    engine = create_engine(database_url(SERVER))
    upgrade_database(engine)
    start = time.perf_counter()
    with Session(engine) as session:
        for first in range(0, jobs, 10_000):
            calls = [TASKS[way].call(n) for n in range(first, min(first + 10_000, jobs))]
            session.execute(enqueue_many(calls))
            session.commit()
    return time.perf_counter() - start


def work(way: str) -> None:
    worker = Worker(SERVER, {"default": SLOTS.get(way, SLOTS["async"])}, registry=registry)
    tune_gc()
    worker.run()
