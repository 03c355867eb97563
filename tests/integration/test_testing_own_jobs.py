"""The testing kit with a job table of the application's own: in a database that has no other one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import create_engine

from sa_jobqueue.migrations import OwnTable
from sa_jobqueue.testing import JobQueue
from tests.support.joined import joined, settle
from tests.support.own_jobs import Base, Job, Tenant, enqueue, registry, write_note


@pytest.fixture
def url(empty_database_url: str) -> str:
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(Job).create(connection)
        Base.metadata.create_all(connection)
    engine.dispose()
    return empty_database_url


@pytest.fixture(params=[False, True], ids=["sync", "async"])
async def kit(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Any]:
    """The kit on a session that is rolled back, with the application's registry."""
    async with joined(url, "psycopg", is_async=request.param, how="outer") as session:
        yield JobQueue(session, registry=registry)


async def test_a_name_is_that_of_the_registry_of_the_kit(kit: Any) -> None:
    """So is the class that is looked for."""
    kit.session.add(job := enqueue(write_note, "hello"))

    assert await settle(kit.assert_enqueued(write_note.name, text="hello")) is job
    assert await settle(kit.enqueued(write_note.name)) == [job]
    await settle(kit.assert_not_enqueued(write_note.name, text="bye"))
    assert (await settle(kit.work_one(job))).outcome == "completed"
