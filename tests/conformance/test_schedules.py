"""Schedules as rows and statements, over every driver, in both Sessions and on plain connections."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Registry, Schedule, Unique, every, task
from sa_jobqueue.sql.schedules.due import Ticked
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import list_schedules, pause_schedules, remove_schedules, resume_schedules, run_schedules
from tests.conformance.conftest import SESSIONS, Client, Order, settle

registry = Registry()
sessions = pytest.mark.parametrize("client", SESSIONS, ids="-".join, indirect=True)


@task(registry=registry, name="report", queue="reports", priority=7, max_attempts=3)
def report(tenant: int, note: str = "") -> None: ...


def tick(engine: Engine) -> None:
    """Work out the next ticks, bring them about, and enqueue their jobs."""
    for _ in range(2):
        with engine.begin() as connection:
            default_store.enqueue_due(connection, Ticked(), limit=9, random=lambda: 0.5)
            connection.execute(update(Schedule).values(next_at=func.now(), due_at=func.now()))


@sessions
async def test_a_schedule_commits_with_the_business_row_and_says_all_that_it_was_given(
    client: Client, application: Engine
) -> None:
    """Numbers, JSON and NULL in its columns arrive, and its job is made of them."""
    full = Schedule(
        "*/5 7 * * mon-fri", report.options(meta={"a": None}, unique=Unique("k"), expires_in=90, deadline=timedelta(hours=1), key='"42\\', units=3).call(2**40, note='it\'s "{NULL,\\}"'),
        name="näme", timezone="Europe/Vienna", missed="skip", catch_up=timedelta(hours=1.5), overlap="queue_one",
        jitter=0.25, pause_after=3,
    )  # fmt: skip
    plain = Schedule(every(3600), report, 1)
    async with client.open() as unit:
        unit.add_all([Order(id=1), full, plain])
        await settle(unit.commit())
    async with client.open() as unit:
        found = (await settle(unit.scalars(select(Schedule).order_by(Schedule.name)))).all()
        loaded, other = sorted(found, key=lambda one: one.expression)
        assert (loaded.name, loaded.timezone, loaded.missed, loaded.overlap) == (
            "näme", "Europe/Vienna", "skip", "queue_one",
        )  # fmt: skip
        assert (loaded.catch_up, loaded.jitter, loaded.pause_after) == (5400.0, 0.25, 3)
        assert (loaded.expires_in, loaded.deadline) == (90.0, 3_600.0)
        assert (loaded.args, loaded.meta) == ({"tenant": 2**40, "note": 'it\'s "{NULL,\\}"'}, {"a": None})
        assert loaded.uniqueness == {"key": "k"}
        assert (loaded.concurrency_key, loaded.units) == ('"42\\', 3)
        assert (other.expires_in, other.deadline, other.concurrency_key, other.units) == (None,) * 4
        assert (other.name, other.catch_up, other.uniqueness, other.next_at) == ("report", None, None, None)
        assert other.created_at == loaded.counts_from

    tick(application)
    with Session(application) as session:
        jobs = session.scalars(select(Job).order_by(Job.unique_key.nulls_first())).all()
        assert [(job.args["tenant"], job.queue, job.priority, job.max_attempts) for job in jobs] == [
            (1, "reports", 7, 3), (2**40, "reports", 7, 3),
        ]  # fmt: skip
        assert [job.unique_key for job in jobs] == [None, "k"]
        assert [(job.key, job.units) for job in jobs] == [(None, None), ('"42\\', 3)]
        assert [(job.expires_at, job.deadline_at) for job in jobs] == [
            (None, None), (jobs[1].created_at + timedelta(seconds=90), jobs[1].created_at + timedelta(hours=1)),
        ]  # fmt: skip


@sessions
async def test_a_schedule_is_edited_and_deleted_as_a_row(client: Client, application: Engine) -> None:
    """A changed rule counts again; a rollback leaves it as it was."""
    async with client.open() as unit:
        unit.add(Schedule(every(3600), report, 1))
        await settle(unit.commit())
    with application.begin() as connection:
        connection.execute(update(Schedule).values(next_at=func.now(), waiting_since=func.now()))

    async with client.open() as unit:
        row = (await settle(unit.scalars(select(Schedule)))).one()
        row.jitter, row.args = 5.5, {"tenant": 3}
        await settle(unit.flush())
        await settle(unit.refresh(row))
        assert (row.jitter, row.args, row.next_at is None) == (5.5, {"tenant": 3}, False)
        row.expression = "0 7 * * *"
        await settle(unit.flush())
        await settle(unit.refresh(row))
        assert (row.expression, row.next_at, row.waiting_since) == ("0 7 * * *", None, None)
        await settle(unit.rollback())
        row = (await settle(unit.scalars(select(Schedule)))).one()
        assert (row.expression, row.jitter, row.args) == ("every 3600 s", 0.0, {"tenant": 1})
        await settle(unit.delete(row))
        await settle(unit.commit())

    with application.connect() as connection:
        assert connection.scalars(select(Schedule.id)).all() == []


async def test_what_an_operator_does_to_schedules_is_a_statement(client: Client, application: Engine) -> None:
    """Each says what it did, and is rolled back with the transaction."""
    with Session(application) as session:
        session.add_all([Schedule(every(3600), report, n, name=name) for n, name in enumerate("abc")])
        session.commit()
    some = Schedule.name.in_(["a", "b"])

    async def returned(unit: Any, statement: Any) -> list[Any]:
        return sorted((await settle(unit.execute(statement))).scalars())

    async with client.open() as unit:
        assert await returned(unit, pause_schedules(some, reason='it\'s\0 "late"')) == ["a", "b"]
        assert await returned(unit, resume_schedules(Schedule.name == "b")) == ["b"]
        made = await returned(unit, run_schedules(some))
        assert await returned(unit, remove_schedules(Schedule.name == "c")) == ["c"]
        listed = (await settle(unit.execute(list_schedules()))).all()
        assert [(row.name, row.paused_by, row.pause_reason) for row in listed] == [
            ("a", "operator", 'it\'s\N{REPLACEMENT CHARACTER} "late"'), ("b", None, None),
        ]  # fmt: skip
        assert [row.job_id for row in listed] == made
        assert {row.job_status for row in listed} == {"queued"}
        assert [row.args for row in listed] == [{"tenant": 0}, {"tenant": 1}]
        await settle(unit.rollback())

    with application.connect() as connection:
        assert connection.execute(select(Schedule.name, Schedule.paused_at).order_by(Schedule.name)).all() == [
            ("a", None), ("b", None), ("c", None),
        ]  # fmt: skip
        assert connection.scalars(select(Job.id)).all() == []
