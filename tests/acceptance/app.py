"""The application whose jobs the acceptance tests run in real workers.

Handlers talk to the test through files in the folder ACCEPTANCE_FOLDER: `say` leaves a line in a file, and a handler that
is held waits for a file which the test makes. So tests know where a handler is, and decide when it goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import AsyncJobContext, JobContext, Registry, RetryPolicy, task

registry = Registry()
SOON = RetryPolicy(base=0.1, jitter=0)


class Base(DeclarativeBase):
    """The application's own tables, in its own schema."""


class Effect(Base):
    """What a handler has written through its session."""

    __tablename__ = "effect"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int]
    pid: Mapped[int]
    note: Mapped[str]


def say(file: str) -> None:
    """Leave this process's id in a file."""
    with open(Path(os.environ["ACCEPTANCE_FOLDER"]) / file, "a", encoding="ascii") as out:
        out.write(f"{os.getpid()}\n")


def hold(name: str) -> Iterator[float]:
    """Say that the handler has started. The first one gets pauses to make, until the test lets it go."""
    folder = Path(os.environ["ACCEPTANCE_FOLDER"])
    try:
        (folder / f"first-{name}").touch(exist_ok=False)
    except FileExistsError:
        say(f"started-{name}")
        return
    say(f"started-{name}")
    while not (folder / f"go-{name}").exists():
        yield 0.01


@task(registry=registry, retry=SOON)
def nothing(number: int = 0) -> None:
    """Does nothing."""


@task(registry=registry, retry=SOON)
async def nothing_async(number: int = 0) -> None:
    """Does nothing, on the event loop."""


@task(registry=registry, retry=SOON)
def write(ctx: JobContext, note: str) -> None:
    """Writes, through its session."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=note))


@task(registry=registry, retry=SOON)
async def write_async(ctx: AsyncJobContext, note: str) -> None:
    """Writes, through its session, on the event loop."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=note))


# No test waits by the sleeps below. They are what handlers do: pause between two looks at the test's gate (`hold`) or at
# `ctx.cancelled`, or block an event loop.


@task(registry=registry, retry=SOON)
def held(ctx: JobContext, name: str) -> None:
    """Writes, then waits for the test: the first time only."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=name))
    ctx.session.flush()
    for pause in hold(name):
        time.sleep(pause)
    say(f"ended-{name}")


def fork(name: str) -> None:
    """A child that stays, whatever becomes of this process."""
    if os.fork() == 0:
        say(f"child-{name}")
        threading.Event().wait()


@task(registry=registry, retry=SOON)
def forks(ctx: JobContext, name: str) -> None:
    """Locks a row, and has a child; the first time only."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=name))
    ctx.session.execute(text("UPDATE locked SET n = n + 1"))
    if next(hold(name), None) is not None:
        fork(name)
        threading.Event().wait()


@task(registry=registry, retry=SOON)
async def forks_async(ctx: AsyncJobContext, name: str) -> None:
    """The same, on the event loop."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=name))
    await ctx.session.execute(text("UPDATE locked SET n = n + 1"))
    if next(hold(name), None) is not None:
        fork(name)
        await asyncio.Event().wait()


@task(registry=registry, retry=SOON)
async def held_async(ctx: AsyncJobContext, name: str) -> None:
    """Writes, then waits for the test: the first time only."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=name))
    await ctx.session.flush()
    for pause in hold(name):
        await asyncio.sleep(pause)
    say(f"ended-{name}")


@task(registry=registry, retry=SOON)
def held_without_session(name: str) -> None:
    """Waits for the test: the first time only."""
    for pause in hold(name):
        time.sleep(pause)
    say(f"ended-{name}")


@task(registry=registry, retry=SOON, max_attempts=1)
def once(ctx: JobContext) -> None:
    """Has one attempt."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note="once"))


@task(registry=registry, retry=SOON, max_attempts=2)
def write_and_fail(ctx: JobContext, note: str) -> None:
    """Writes, and fails in every attempt."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=note))
    ctx.session.flush()
    raise ValueError("after the write")


@task(registry=registry, retry=SOON)
def slow_commit(ctx: JobContext, seconds: float) -> None:
    """Has a commit that takes its time: a deferred constraint trigger of the test's sleeps for `seconds`."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=f"sleep {seconds}"))
    say("slow-commit")


@task(registry=registry, retry=SOON)
async def slow_commit_async(ctx: AsyncJobContext, seconds: float) -> None:
    """The same on the event loop."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=f"sleep {seconds}"))
    say("slow-commit")


@task(registry=registry, retry=SOON)
def nap(ctx: JobContext, seconds: float) -> None:
    """Takes its time, then writes."""
    ctx.session.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": seconds})
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note="nap"))


@task(registry=registry, retry=SOON)
async def block(ctx: AsyncJobContext, seconds: float) -> None:
    """Blocks the event loop, as async handlers should not."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note="blocked"))
    await ctx.session.flush()
    say("blocking")
    time.sleep(seconds)  # noqa: ASYNC251  # that is the point


@task(registry=registry, retry=SOON)
async def held_blocking(ctx: AsyncJobContext, name: str) -> None:
    """Writes, then blocks the event loop until the test lets it go."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=name))
    await ctx.session.flush()
    for pause in hold(name):
        time.sleep(pause)  # noqa: ASYNC251  # that is the point


@task(registry=registry, retry=SOON)
def kill_worker() -> None:
    """Takes its process with it."""
    say("killed")
    os._exit(9)


@task(registry=registry, retry=SOON)
async def cancel_all_tasks() -> None:
    """Ends its event loop, and with it all that runs there."""
    say("killed")
    for each in asyncio.all_tasks():
        each.cancel()
    await asyncio.Event().wait()


@task(registry=registry, retry=SOON)
def stop_worker() -> None:
    """Tells its process to end, and does not come to an end itself."""
    say("killed")
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()


@task(registry=registry, retry=SOON, max_attempts=1)
async def nap_async(ctx: AsyncJobContext, seconds: float) -> None:
    """Takes its time on the event loop, then writes."""
    await asyncio.sleep(seconds)
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note="nap"))


@task(registry=registry, retry=SOON, timeout=0.5, max_attempts=1)
def overtime(ctx: JobContext, name: str) -> None:
    """Takes longer than it may, and writes all the same."""
    for pause in hold(name):
        time.sleep(pause)
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=name))
    say(f"ended-{name}")


@task(registry=registry, retry=SOON, timeout=0.5, max_attempts=1)
async def overtime_async(ctx: AsyncJobContext, name: str) -> None:
    """Takes longer than it may."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=name))
    await ctx.session.flush()
    for pause in hold(name):
        await asyncio.sleep(pause)


@task(registry=registry, retry=SOON, timeout=2, max_attempts=1)
async def overtime_blocking(ctx: AsyncJobContext, name: str) -> None:
    """Blocks the event loop for longer than it may take; on a busy machine the way to there takes a while."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=name))
    await ctx.session.flush()
    for pause in hold(name):
        time.sleep(pause)  # noqa: ASYNC251  # that is the point


@task(registry=registry, retry=SOON)
async def ignore_cancel(name: str) -> None:
    """Does not let itself be cancelled."""
    say(f"started-{name}")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:  # that is the point
            say(f"ignored-{name}")


@task(registry=registry, retry=SOON)
async def sleep_in_thread(name: str) -> None:
    """Waits for one of asyncio's threads, which cannot be ended."""
    say(f"started-{name}")
    await asyncio.to_thread(time.sleep, 600)


@task(registry=registry, retry=SOON)
def never_ends(name: str) -> None:
    """Does not end."""
    say(f"started-{name}")
    time.sleep(600)


@task(registry=registry, retry=SOON)
def stops_when_asked(ctx: JobContext, name: str) -> None:
    """Looks at `ctx.cancelled`."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=name))
    ctx.session.flush()
    say(f"started-{name}")
    while not ctx.cancelled:
        time.sleep(0.01)
    say(f"ended-{name}")


old_release, new_release = Registry(), Registry()


@task(registry=old_release, name="acceptance.send", retry=SOON)
def send(ctx: JobContext, note: str) -> None:
    """What the old release calls it."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=f"old {note}"))


@task(registry=new_release, name="acceptance.deliver", aliases=["acceptance.send"], retry=SOON)
def deliver(ctx: JobContext, note: str) -> None:
    """What the new release calls it."""
    ctx.session.add(Effect(job_id=ctx.job_id, pid=os.getpid(), note=f"new {note}"))
