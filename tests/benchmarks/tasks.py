"""What the measured workers run."""

from __future__ import annotations

import asyncio
import time

from sqlalchemy import insert

from sa_jobqueue import AsyncJobContext, BatchContext, Batching, JobContext, Registry, task

from .plain import Item, notes

REGISTRY = Registry()

#: When the jobs of `note_start` began, or those of `until_cancelled` heard of their cancels, in the worker's process.
STARTED: dict[int, float] = {}


@task(registry=REGISTRY, name="nothing")
async def nothing(n: int) -> None:
    """Do nothing."""


@task(registry=REGISTRY, name="nothing_sync")
def nothing_sync(n: int) -> None:
    """Do nothing, on a thread."""


@task(registry=REGISTRY, name="nothing_in_child", executor="process")
def nothing_in_child(n: int) -> None:
    """Do nothing, in a child process."""


@task(registry=REGISTRY, name="nothing_deleted", retain=0)
async def nothing_deleted(n: int) -> None:
    """Do nothing, and leave no row."""


@task(registry=REGISTRY, name="result", record=True)
async def result(n: int) -> dict[str, int]:
    """Return something, which is recorded."""
    return {"number": n, "lines": 3}


@task(registry=REGISTRY, name="progress")
async def progress(ctx: AsyncJobContext, n: int) -> None:
    """Say how far it is."""
    ctx.progress(0.5, "half of it")


@task(registry=REGISTRY, name="line", keep_logs=True)
async def line(ctx: AsyncJobContext, n: int) -> None:
    """Keep a line."""
    ctx.logger.info("job %d has a line", n)


@task(registry=REGISTRY, name="ten_lines", keep_logs=True)
async def ten_lines(ctx: AsyncJobContext, n: int) -> None:
    """Keep ten."""
    for number in range(10):
        ctx.logger.info("job %d, line %d", n, number)


@task(registry=REGISTRY, name="note_start")
async def note_start(n: int) -> None:
    """Note when it started."""
    STARTED[n] = time.perf_counter()


@task(registry=REGISTRY, name="waits")
async def waits(ctx: AsyncJobContext, n: int) -> None:
    """Wait for the job's own signal, and note when it comes."""
    await ctx.wait_signal(f"go:{n}")
    STARTED[n] = time.perf_counter()


@task(registry=REGISTRY, name="turn")
async def turn(n: int) -> None:
    """Take half a second; note when it started, and under `~n` when it ended."""
    STARTED[n] = time.perf_counter()
    await asyncio.sleep(0.5)
    STARTED[~n] = time.perf_counter()


@task(registry=REGISTRY, name="nap")
async def nap(n: int) -> None:
    """Take a hundredth of a second."""
    await asyncio.sleep(0.01)


@task(registry=REGISTRY, name="hold")
async def hold(n: int) -> None:
    """Keep a slot."""
    await asyncio.sleep(3_600)


@task(registry=REGISTRY, name="until_cancelled")
async def until_cancelled(n: int) -> None:
    """Keep a slot until a cancel is heard, and note when."""
    try:
        await asyncio.sleep(60)
    finally:
        STARTED[n] = time.perf_counter()


@task(registry=REGISTRY, name="until_cancelled_sync")
def until_cancelled_sync(ctx: JobContext, n: int) -> None:
    """The same, by a look at `ctx.cancelled` each millisecond."""
    until = time.perf_counter() + 60
    while not ctx.cancelled and time.perf_counter() < until:
        time.sleep(0.001)
    STARTED[n] = time.perf_counter()
    ctx.raise_if_cancelled()


@task(registry=REGISTRY, name="write")
async def write(ctx: AsyncJobContext, n: int) -> None:
    """One INSERT, in the transaction of the job's completion."""
    await ctx.session.execute(insert(notes), {"n": n})


@task(registry=REGISTRY, name="write_batch", batch=Batching(500))
def write_batch(ctx: BatchContext, n: list[int]) -> None:
    """Insert a row for each job, all in one statement."""
    ctx.session.execute(insert(notes).returning(notes.c.n), [{"n": number} for number in n])


@task(registry=REGISTRY, name="write_sync")
def write_sync(ctx: JobContext, n: int) -> None:
    """One INSERT, in the transaction of the job's completion."""
    ctx.session.execute(insert(notes), {"n": n})


@task(registry=REGISTRY, name="get_sync")
def get_sync(ctx: JobContext, n: int) -> None:
    """Load a row by its key, and change it."""
    ctx.session.get_one(Item, n).n += 1


@task(registry=REGISTRY, name="get")
async def get(ctx: AsyncJobContext, n: int) -> None:
    """The same."""
    (await ctx.session.get_one(Item, n)).n += 1


@task(registry=REGISTRY, name="take_sync")
def take_sync(ctx: JobContext, n: Item) -> None:
    """The same of an object argument."""
    n.n += 1


@task(registry=REGISTRY, name="take")
async def take(ctx: AsyncJobContext, n: Item) -> None:
    """The same."""
    n.n += 1


@task(registry=REGISTRY, name="write_result", record=True)
def write_result(ctx: JobContext, n: int) -> dict[str, int]:
    """The same, with a result."""
    ctx.session.execute(insert(notes), {"n": n})
    return {"number": n, "lines": 3}
