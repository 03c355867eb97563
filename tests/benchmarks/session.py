"""Handlers that write through `ctx.session`, against bare loops that do the same INSERT and status UPDATE.

One loop does so with a connection alone. The other has a `Session` for each job, as handlers have: it shows how much of
the difference is the session's. All are timed by the rows' `finished_at`, from when a sixth of the jobs has ended: by then
all connections are open and all statements are prepared.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import Connection, Update, bindparam, create_engine, func, insert, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.models import status_literal
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.trials.bench.processes import processes

from .plain import make_tables, notes
from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench
from .workers import work

CONCURRENCY = 32


def session(bench: Bench) -> Iterator[Figure]:
    """32 at a time; the bare loops claim nothing, their jobs are running from the start."""
    jobs = 500 if bench.small else 6_000
    for kind, task, loop, against in (
        ("sync", "write_sync", with_threads, "threads"),
        ("async", "write", with_tasks, "tasks"),
    ):
        title = f"drain, {kind} handler, one INSERT by ctx.session, {CONCURRENCY} at a time"
        mine, plain, sessions, *pinned = zip(
            *interleaved(
                bench.repeat,
                partial(ours, bench, jobs, task),
                partial(bare, bench, jobs, loop, False),
                partial(bare, bench, jobs, loop, True),
                *([partial(ours, bench, jobs, task, pin=True)] if kind == "sync" else []),
            ),
            strict=True,
        )
        yield compared(title, zip(mine, plain, strict=True), "jobs/s", against, at_least=0.7)
        yield compared(title, zip(mine, sessions, strict=True), "jobs/s", f"{against}, a Session each")
        for on_one_core in pinned:
            yield compared(f"{title}, --pin", zip(on_one_core, plain, strict=True), "jobs/s", against, at_least=0.7)
            yield compared(f"{title}, --pin", zip(on_one_core, mine, strict=True), "jobs/s", "without --pin")


def record_session(bench: Bench) -> Iterator[Figure]:
    """Results that are recorded together with what handlers write, against none, both ours."""
    jobs = 500 if bench.small else 6_000
    pairs = interleaved(
        bench.repeat, partial(ours, bench, jobs, "write_result"), partial(ours, bench, jobs, "write_sync")
    )
    yield compared("ctx.session with record=True : without a result", pairs, "jobs/s", "without", at_least=0.8)


def batches(bench: Bench) -> Iterator[Figure]:
    """Jobs that each insert a row, in batches of 500, against single jobs that do the same, both by `ctx.session` on threads."""
    jobs = 2_000 if bench.small else 10_000
    pairs = interleaved(
        bench.repeat, partial(ours, bench, jobs, "write_batch"), partial(ours, bench, jobs, "write_sync")
    )
    yield compared(
        "ctx.session, one INSERT a job, batches of 500 : single jobs", pairs, "jobs/s", "single", at_least=10.0
    )


def ours(bench: Bench, jobs: int, task: str, *, pin: bool = False) -> float:
    """Jobs per second of one worker process."""
    make_tables(bench)
    bench.prepare(jobs, task=task)
    with processes(1, work, bench.address, {"default": CONCURRENCY}, None, pin) as group:
        group.go()
    return _rate(bench, jobs)


def bare(bench: Bench, jobs: int, loop: Callable[..., None], sessions: bool) -> float:
    """Jobs per second of one process whose threads or tasks have a connection of their own each.

    `sessions`: each job has a session of its own instead.
    """
    make_tables(bench)
    bench.prepare(jobs)
    bench.execute(f"UPDATE {SCHEMA}.job SET status = 'running', claims = 1, worker = 'bare', claimed_at = now()")
    bench.settle()
    with processes(1, loop, bench.address, sessions) as group:
        group.go()
    return _rate(bench, jobs)


def with_threads(ready: Callable[[], Any], address: str, sessions: bool) -> None:
    """A thread for each job at a time."""
    engine = create_engine(address, pool_size=CONCURRENCY)
    with engine.connect() as connection:
        todo = deque(connection.execute(text(f"SELECT id FROM {SCHEMA}.job ORDER BY id")).scalars())
    complete = _complete()

    def do(by: Connection | Session, id: int) -> None:
        by.execute(insert(notes), {"n": id})
        by.execute(complete, {"job_id": id, "seen": 1})
        by.commit()

    def run() -> None:
        with engine.connect() as connection:
            connected.wait()
            with suppress(IndexError):
                while not sessions:
                    do(connection, todo.popleft())
        with suppress(IndexError):
            while True:
                id = todo.popleft()
                with Session(engine) as session:
                    do(session, id)

    connected = threading.Barrier(CONCURRENCY + 1)
    threads = [threading.Thread(target=run) for _ in range(CONCURRENCY)]
    for thread in threads:
        thread.start()
    ready()
    connected.wait()
    for thread in threads:
        thread.join()


def with_tasks(ready: Callable[[], Any], address: str, sessions: bool) -> None:
    """A task for each job at a time, on the loop that a worker would use."""
    _run(_tasks(ready, address, sessions))


async def _tasks(ready: Callable[[], Any], address: str, sessions: bool) -> None:
    engine = create_async_engine(address, pool_size=CONCURRENCY)
    async with engine.connect() as connection:
        found = await connection.execute(text(f"SELECT id FROM {SCHEMA}.job ORDER BY id"))
        todo = deque(found.scalars())
    complete = _complete()
    connections = [await engine.connect() for _ in range(CONCURRENCY)]

    async def do(by: AsyncConnection | AsyncSession, id: int) -> None:
        await by.execute(insert(notes), {"n": id})
        await by.execute(complete, {"job_id": id, "seen": 1})
        await by.commit()

    async def run(connection: AsyncConnection) -> None:
        while todo:
            if not sessions:
                await do(connection, todo.popleft())
                continue
            async with AsyncSession(engine) as session:
                await do(session, todo.popleft())

    ready()
    if sessions:
        for connection in connections:
            await connection.close()  # back to the pool, open
    await asyncio.gather(*(run(connection) for connection in connections))
    for connection in connections:
        await connection.close()
    await engine.dispose()


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def _complete() -> Update:
    job = Job.__table__.to_metadata(notes.metadata, schema=SCHEMA, name="job")  # type: ignore[attr-defined]
    return (
        update(job)
        .where(
            job.c.id == bindparam("job_id"), job.c.claims == bindparam("seen"),
            job.c.status == status_literal(JobStatus.RUNNING),
        )
        .values(
            status=status_literal(JobStatus.COMPLETED), finished_at=func.statement_timestamp(), lease_expires_at=None,
            purge_at=func.now() + text("interval '7 days'"),
        )
    )  # fmt: skip


def _rate(bench: Bench, jobs: int) -> float:
    written = bench.execute(f"SELECT count(*) FROM {SCHEMA}.note")
    assert written == jobs, f"{jobs} jobs wrote {written} notes"
    return rate(bench, jobs)


def rate(bench: Bench, jobs: int) -> float:
    """Jobs per second, of those that ended after the first sixth."""
    completed = bench.count("status = 'completed'")
    assert completed == jobs, f"{completed} of {jobs} jobs completed"
    measured = f"""
        SELECT (count(*) - 1) / extract(epoch FROM max(finished_at) - min(finished_at))
        FROM (SELECT finished_at FROM {SCHEMA}.job ORDER BY finished_at OFFSET :begun) AS job
    """
    return float(bench.execute(measured, begun=jobs // 6))
