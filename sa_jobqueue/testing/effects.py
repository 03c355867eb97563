"""`effects`: what a block of a test writes, which the database then forgets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, overload

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..worker.running.effects import Comparison, Effects
from .transaction import AsyncSide, Side, SyncSide, own_session


@overload
def effects(session: SyncSide) -> AbstractContextManager[Effects]: ...
@overload
def effects(session: AsyncSide) -> AbstractAsyncContextManager[Effects]: ...
def effects(session: Side) -> Any:
    """Undo the writes of a block, and return them.

    `with effects(session) as rows:`, or `async with` for an `AsyncSession`. In the block `drain` or `work_one` run jobs, or the test calls a handler.

    It sees what the database saw: triggers, cascades and plain SQL as well, but no TRUNCATE. Of the queue's own tables, and of job tables of
    your own, it shows the jobs that were enqueued. Tables of up to 100,000 rows are compared.

    Raises JobQueueError if the session's transaction was ended in the block, or a table is larger.
    """
    own = own_session(session)
    return _async_effects(own) if isinstance(own, AsyncSession) else _effects(own)


@contextmanager
def _effects(session: Session) -> Generator[Effects]:
    comparison = Comparison(session)
    try:
        yield comparison.found
    except BaseException:
        comparison.undo()
        raise
    comparison.compare()


@asynccontextmanager
async def _async_effects(session: AsyncSession) -> AsyncGenerator[Effects]:
    comparison = await session.run_sync(Comparison)
    try:
        yield comparison.found
    except BaseException:
        await session.run_sync(lambda _: comparison.undo())
        raise
    await session.run_sync(lambda _: comparison.compare())
