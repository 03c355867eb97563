"""What a handler does to the connection of its `ctx.session`, and who suffers from it: itself, and hardly another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import AsyncJobContext, JobContext, JobStatus, Registry, RetryPolicy, enqueue, task
from tests.support.waiting import wait_until
from tests.support.working import add_one, job_of, working

NEVER = RetryPolicy(no_retry=(BaseException,))


@pytest.fixture
def registry() -> Registry:
    return Registry()


# ---- a command that was left open

#: What is left open is kept here: else it would end with its last reference.
left: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    left.clear()


def leave_open(session: Session, how: str) -> None:
    raw: Any = session.connection().connection.driver_connection
    left.append(raw.cursor())
    if how == "copy":
        left.append(left[-1].copy("COPY (SELECT generate_series(1, 1000000)) TO STDOUT"))
        left[-1].__enter__()
    else:
        left.append(left[-1].stream("SELECT generate_series(1, 1000000)"))
        next(left[-1])


async def leave_open_async(session: AsyncSession, how: str) -> None:
    raw: Any = (await (await session.connection()).get_raw_connection()).driver_connection
    left.append(raw.cursor())
    if how == "copy":
        left.append(left[-1].copy("COPY (SELECT generate_series(1, 1000000)) TO STDOUT"))
        await left[-1].__aenter__()
    else:
        left.append(left[-1].stream("SELECT generate_series(1, 1000000)"))
        await anext(left[-1])


@pytest.mark.parametrize("ends", ["returns", "raises"])
@pytest.mark.parametrize("how", ["copy", "stream"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_command_that_was_left_open_fails_the_attempt_and_holds_up_nothing(
    engine: Engine, url: str, registry: Registry, kind: str, how: str, ends: str
) -> None:
    """A COPY or a stream that nobody read to its end: the connection could only wait for it, and is closed."""

    @task(registry=registry, name="sync", retry=NEVER)
    def sync_handler(ctx: JobContext) -> None:
        ctx.session.execute(text("CREATE TABLE written (n integer)"))
        leave_open(ctx.session, how)
        if ends == "raises":
            raise ValueError("of its own")

    @task(registry=registry, name="async", retry=NEVER)
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("CREATE TABLE written (n integer)"))
        await leave_open_async(ctx.session, how)
        if ends == "raises":
            raise ValueError("of its own")

    @task(registry=registry, name="next")
    def next_handler(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))

    first = add_one(engine, enqueue(kind))
    with working(url, registry, queues={"default": 1}):
        wait_until(lambda: job_of(engine, first).is_finished)
        second = add_one(engine, enqueue("next"))
        wait_until(lambda: job_of(engine, second).is_finished)
    job = job_of(engine, first)
    assert job.status == JobStatus.FAILED
    said = "a COPY or another command open" if ends == "returns" else "of its own"
    assert said in job.errors[-1]["message"]
    assert job_of(engine, second).status == JobStatus.COMPLETED
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('written')")) is None
