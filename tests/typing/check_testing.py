"""What type checkers make of the testing kit: read by mypy and pyright (`test_typing.py`), never run."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session

from sa_jobqueue import AsyncJobContext, Job, JobContext, task
from sa_jobqueue.testing import (
    Drained,
    Effects,
    Explanation,
    FakeAsyncJobContext,
    FakeJobContext,
    JobQueue,
    Ran,
    Replay,
    assert_enqueued,
    assert_not_enqueued,
    check_replay,
    crash_after,
    drain,
    effects,
    enqueued,
    explain,
    move_clock,
    signal,
    work_one,
)


@task
def send(ctx: JobContext, order_id: int) -> None: ...


@task
async def send_async(ctx: AsyncJobContext, order_id: int) -> None: ...


def with_a_session(session: Session, scoped: scoped_session[Session]) -> None:
    """Each call answers at once."""
    assert_type(drain(session), Drained)
    assert_type(drain(scoped, queues=["mail"]), Drained)
    assert_type(work_one(session), Ran)
    assert_type(assert_enqueued(session, send, order_id=7), Job)
    assert_type(enqueued(session, "shop.send"), list[Job])
    assert_not_enqueued(session, send)
    move_clock(session, timedelta(hours=1))
    assert_type(explain(session), Explanation)
    with effects(session) as rows:
        assert_type(rows, Effects)
    signal(session, "order:7:approve", {"by": "ann"}, expires_in=60)
    with crash_after("label"):
        assert_type(check_replay(scoped, 7, harmless=["shop."]), Replay)

    drain(None)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_enqueued(session, len)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def with_an_async_session(session: AsyncSession) -> None:
    """Each call is awaited."""
    assert_type(await drain(session), Drained)
    assert_type(await work_one(session, 7), Ran)
    assert_type(await assert_enqueued(session, send_async, order_id=7), Job)
    assert_type(await enqueued(session, "shop.send"), list[Job])
    await assert_not_enqueued(session, send)
    await move_clock(session, 60)
    assert_type(await explain(session), Explanation)
    async with effects(session) as rows:
        assert_type(rows, Effects)
    await signal(session, "order:7:approve")
    assert_type(await check_replay(session, 7), Replay)


async def with_the_fixture(jobqueue: JobQueue[Session], async_jobqueue: JobQueue[AsyncSession]) -> None:
    """Its methods follow the kind of its session."""
    assert_type(jobqueue.drain(), Drained)
    assert_type(jobqueue.assert_enqueued(send, order_id=7), Job)
    assert_type(await async_jobqueue.drain(), Drained)
    jobqueue.signal("go")
    await async_jobqueue.signal("go", 7)
    with async_jobqueue.crash_after("label", recorded=False):
        assert_type((await async_jobqueue.check_replay(7)).repeated[0].line, int)
    assert_type(await async_jobqueue.assert_enqueued(send, order_id=7), Job)
    with jobqueue.effects() as rows:
        assert_type(rows, Effects)


async def contexts_are_what_handlers_take(session: Session, async_session: AsyncSession) -> None:
    """Without a cast."""
    send(FakeJobContext(session), 7)
    await send_async(FakeAsyncJobContext(async_session), 7)
    assert_type(FakeJobContext().said, list[tuple[float, str | None]])

    send(FakeAsyncJobContext(), 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    FakeJobContext(async_session)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
