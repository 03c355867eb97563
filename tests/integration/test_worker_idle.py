"""When a worker that drains is done."""

from __future__ import annotations

import asyncio

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Registry, enqueue, task
from tests.support.working import worker_for


async def test_draining_ends_when_one_of_several_queues_was_busy_for_longer(engine: Engine, url: str) -> None:
    """Nothing due in any of them is idle, whenever each of them was last looked at."""
    registry = Registry()

    @task(registry=registry, name="slow", queue="a")
    async def slow() -> None:
        await asyncio.sleep(0.5)

    with Session(engine) as session:
        session.add(enqueue(slow))
        session.commit()
    worker = worker_for(url, registry, queues={"a": 4, "b": 4, "c": 4}, poll=1.0)

    await asyncio.wait_for(worker.serve(until_idle=True), timeout=10)

    assert worker.counts["complete"] == 1
