"""A job table of the application's own over each driver: a flush, many at once, a select, an action, in both kinds of sessions."""

from __future__ import annotations

import inspect
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import pytest
from sqlalchemy import create_engine, literal, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Enqueue, JobStatus, Unique, enqueue_many, enqueue_select
from sa_jobqueue.migrations import OwnTable
from sa_jobqueue.statements import cancel_jobs
from tests.conformance.conftest import SESSIONS
from tests.support.databases import driver_url
from tests.support.own_jobs import Base, Color, Job, Tenant, TypedJob, enqueue, write_note

T = TypeVar("T")


@pytest.fixture
def url(empty_database_url: str) -> str:
    """A database that has the application's table only."""
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(Job).create(connection)
        Base.metadata.create_all(connection)
        connection.execute(Tenant.__table__.insert(), [{"name": "acme"}, {"name": "umbrella"}])  # type: ignore[attr-defined]
    engine.dispose()
    return empty_database_url


async def settle(value: Any) -> Any:
    """What a sync or an async call gives."""
    return await value if inspect.isawaitable(value) else value


@pytest.mark.parametrize(("driver", "kind"), SESSIONS, ids="-".join)
async def test_each_driver_writes_and_changes_such_jobs(url: str, driver: str, kind: str) -> None:
    """The same values come back, and the tables beside it are found."""
    target = driver_url(url, driver)
    engine: Any = create_async_engine(target) if kind == "AsyncSession" else create_engine(target)
    session: Any = AsyncSession(engine) if kind == "AsyncSession" else Session(engine)
    task = write_note.options(columns={"tenant_id": 1, "source": "a"}, delay=timedelta(hours=1))
    plain = enqueue(task, "one")
    unique = enqueue(task.options(unique=Unique(key="once")), "two")
    session.add_all([plain, unique])
    await settle(session.commit())
    calls = [task.options(columns={"tenant_id": 2, "source": f"s{n}"}).call(f"many {n}") for n in range(3)]
    ids = (await settle(session.scalars(enqueue_many(calls, job=Job)))).all()
    source = select(Tenant.name).order_by(Tenant.id)
    await settle(session.execute(enqueue_select(task, source, columns={"tenant_id": Tenant.id}, job=Job)))
    await settle(session.commit())
    rows = (await settle(session.execute(select(Job.tenant_id, Job.source, Job.importance).order_by(Job.id)))).all()
    assert [tuple(row) for row in rows] == [
        (1, "a", 1), (1, "a", 1), (2, "s0", 1), (2, "s1", 1), (2, "s2", 1), (1, "a", 1), (2, "a", 1),
    ]  # fmt: skip
    cancelled = (await settle(session.scalars(cancel_jobs(Job.tenant_id == 2, Job.id.in_(ids), job=Job)))).all()
    assert sorted(cancelled) == sorted(ids)
    await settle(session.commit())
    found = (await settle(session.scalars(select(Job.status).where(Job.is_scheduled)))).all()
    assert found == [JobStatus.QUEUED] * 4
    await settle(session.close())
    await settle(engine.dispose())


#: A value for each column of `TypedJob`.
VALUES: dict[str, Any] = {
    "color": Color.BLUE,
    "document": {"a": [1, "x", None]},
    "number": uuid.UUID(int=7),
    "day": date(2030, 1, 2),
    "price": Decimal("1.50"),
    "urgent": True,
    "share": 0.5,
    "at": datetime(2030, 1, 2, 3, 4, tzinfo=UTC),
}


@pytest.mark.parametrize(("driver", "kind"), SESSIONS, ids="-".join)
async def test_columns_of_any_type_are_filled_in_each_way(empty_database_url: str, driver: str, kind: str) -> None:
    """By a flush, in bulk beside a NULL, and by a select: the same values come back."""
    owner = create_engine(empty_database_url)
    with owner.begin() as connection:
        OwnTable(TypedJob).create(connection)
    owner.dispose()
    target = driver_url(empty_database_url, driver)
    engine: Any = create_async_engine(target) if kind == "AsyncSession" else create_engine(target)
    session: Any = AsyncSession(engine) if kind == "AsyncSession" else Session(engine)
    task, empty = (write_note.options(columns=one) for one in (VALUES, dict.fromkeys(VALUES)))
    session.add(Enqueue(TypedJob)(task, "flushed"))
    await settle(session.execute(enqueue_many([task.call("many"), empty.call("none")], job=TypedJob)))
    await settle(session.execute(enqueue_select(task, select(literal("selected").label("text")), job=TypedJob)))
    await settle(session.commit())
    found = (await settle(session.scalars(select(TypedJob).order_by(TypedJob.id)))).all()
    assert [{name: getattr(one, name) for name in VALUES} for one in found if one.args["text"] != "none"] == [
        VALUES
    ] * 3
    assert [getattr(one, name) for one in found if one.args["text"] == "none" for name in VALUES] == [None] * len(
        VALUES
    )
    await settle(session.close())
    await settle(engine.dispose())
