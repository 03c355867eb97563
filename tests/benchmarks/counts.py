"""What the queue asks of the server, counted: no clock, so the figures are the same on every machine, and a test pins them.

The worker runs in lockstep. Else the number of outcomes that a round finds would depend on time, and so would the counts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Task, Worker, WorkerSettings, enqueue, enqueue_many
from tests.support.lockstep import Step
from tests.support.wire import Counted, Counts, Wire, counting

from .plain import make_tables
from .report import Figure
from .schema import SCHEMA, Bench
from .tasks import REGISTRY, nothing, nothing_deleted, nothing_sync, write_sync
from .workers import SLOTS

JOBS = 1_000
#: Each handler that uses `ctx.session` has a connection.
WRITERS = 10


def counts(bench: Bench) -> Iterator[Figure]:
    """Per 100 jobs: ten batches are drained, the first claim and the last completions included; and jobs are made."""
    if sys.platform != "linux":
        return  # psycopg has libpq's trace there only
    make_tables(bench)
    for measure, jobs, work in (
        ("drain, async no-op", JOBS, _drained(nothing, JOBS, SLOTS)),
        ("drain, sync no-op on threads", JOBS, _drained(nothing_sync, JOBS, SLOTS)),
        ("drain, async no-op, retain=0", JOBS, _drained(nothing_deleted, JOBS, SLOTS)),
        ("drain, sync handler, one INSERT by ctx.session", 100, _drained(write_sync, 100, WRITERS)),
        ("session.add(enqueue()) + commit", 10, _added(10, 1)),
        ("session.add_all of 1,000 jobs + commit", JOBS, _added(1, JOBS)),
        ("enqueue_many of 1,000 jobs + commit", JOBS, _many),
    ):
        bench.empty()
        found = _count(bench, work)
        for name, count in (
            ("round trips", found.round_trips),
            ("commits", found.commits),
            ("statements", found.statements),
            ("rows written", found.rows),
        ):
            yield Figure(f"{measure}: {name}", count / jobs * 100, "per 100 jobs")


def _count(bench: Bench, work: Callable[[Engine, Wire], Counts]) -> Counts:
    """What `work` asks for, on an engine of its own."""
    engine = create_engine(bench.url, pool_size=WRITERS)
    wire = Wire(engine)
    try:
        return work(engine, wire)
    finally:
        engine.dispose()
        wire.close()


def _drained(task: Task[..., object], jobs: int, slots: int) -> Callable[[Engine, Wire], Counts]:
    """One worker with `slots` slots, which claims nothing ahead."""

    def work(engine: Engine, wire: Wire) -> Counts:
        with Session(engine) as session:
            session.execute(enqueue_many([task.call(n=n) for n in range(jobs)]))
            session.commit()
        settings = WorkerSettings(buffer=0)
        worker = Worker(engine, {"default": slots}, registry=REGISTRY, max_jobs=jobs, listen=False, settings=settings)
        return asyncio.run(_drain(worker, wire)).result

    return work


async def _drain(worker: Worker, wire: Wire) -> Counted:
    step = Step(worker)
    try:
        step.connect()
        with counting(wire, schema=SCHEMA) as counted:
            await step.drain()
    finally:
        step.close()
    return counted


def _added(commits: int, batch: int) -> Callable[[Engine, Wire], Counts]:
    """`commits` transactions of `batch` jobs each."""

    def work(engine: Engine, wire: Wire) -> Counts:
        engine.connect().close()
        with counting(wire, schema=SCHEMA) as counted, Session(engine) as session:
            for _ in range(commits):
                session.add_all([enqueue(nothing, n) for n in range(batch)])
                session.commit()
        return counted.result

    return work


def _many(engine: Engine, wire: Wire) -> Counts:
    engine.connect().close()
    with counting(wire, schema=SCHEMA) as counted, Session(engine) as session:
        session.execute(enqueue_many([nothing.call(n) for n in range(JOBS)]))
        session.commit()
    return counted.result
