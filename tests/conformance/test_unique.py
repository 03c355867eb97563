"""What unique jobs promise, over every driver, in both Sessions and on plain connections."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Registry, Unique, enqueue, enqueue_many, task
from tests.conformance.conftest import ISOLATION, SESSIONS, Client, settle

registry = Registry()
sessions = pytest.mark.parametrize("client", SESSIONS, ids="-".join, indirect=True)


@task(registry=registry)
def send(order_id: int, note: str = "") -> None: ...


once = send.options(unique=Unique(by=("order_id",)))


def jobs_in(engine: Engine) -> list[Job]:
    with Session(engine, expire_on_commit=False) as session:
        return list(session.scalars(select(Job).order_by(Job.id)))


@pytest.mark.parametrize("level", ISOLATION)
async def test_of_jobs_with_one_key_one_is_kept(client: Client, application: Engine, level: str) -> None:
    """The others are written as cancelled, and what was enqueued beside them stays; a Session knows it after the flush."""
    async with client.open(isolation_level=level) as unit:
        await client.put(unit, (once, 1), (send, 1), (once, 1), (once, 2))
        await settle(unit.commit())
        if client.is_orm:
            jobs = [enqueue(once, 2), enqueue(once, 3)]
            unit.add_all(jobs)
            await settle(unit.flush())
            assert [job.is_duplicate for job in jobs] == [True, False]
            assert [job.status for job in jobs] == [JobStatus.CANCELLED, JobStatus.QUEUED]
            assert (jobs[0].duplicate_of is None) == (level == "SERIALIZABLE")
            await settle(unit.rollback())
    kept = sorted(job.args["order_id"] for job in jobs_in(application) if not job.is_duplicate)
    assert kept == [1, 1, 2]
    assert len(jobs_in(application)) == 4


@sessions
@pytest.mark.parametrize("level", ISOLATION)
async def test_a_session_shows_of_a_duplicate_after_the_flush_what_its_row_says(client: Client, level: str) -> None:
    """All of it, and without another statement: the role may have no right to read it."""
    again = send.options(unique=Unique("it's %s \\ „two“", on_clash="replace"))
    async with client.open(isolation_level=level) as unit:
        unit.add(enqueue(again, 1))
        await settle(unit.flush())
        jobs = [enqueue(again, 2), enqueue(send, 3)]
        unit.add_all(jobs)
        with client.watched() as sent:
            await settle(unit.flush())
            shown = [_shown(job) for job in jobs]
        for job in jobs:
            await settle(unit.refresh(job))
        assert shown == [_shown(job) for job in jobs]
        assert len([one for one in sent if one.startswith(("SELECT", "INSERT"))]) == 1
        await settle(unit.rollback())
    assert [one["status"] for one in shown] == [JobStatus.CANCELLED, JobStatus.QUEUED]


def _shown(job: Job) -> dict[str, Any]:
    names = (
        "status",
        "duplicate_of",
        "is_finished",
        "run_at",
        "created_at",
        "finished_at",
        "purge_at",
        "attempt",
        "result",
        "claimed_at",
    )
    errors = [{**error, "at": datetime.fromisoformat(error["at"])} for error in job.errors]
    return {name: getattr(job, name) for name in names} | {
        "errors": errors,
        "reason": (job.end.error or {}).get("message"),
    }


@sessions
async def test_jobs_with_and_without_a_key_are_one_insert_for_one_flush(client: Client, application: Engine) -> None:
    """Each object has the id of its own row, though keys are taken in their order."""
    jobs = [enqueue(once if number % 3 else send, 100 - number) for number in range(100)]
    with client.watched() as sent:
        async with client.open() as unit:
            unit.add_all(jobs)
            await settle(unit.flush())
            ids = {job.id: job.args["order_id"] for job in jobs}
            await settle(unit.commit())

    assert len([one for one in sent if one.startswith("INSERT")]) == 1
    assert {job.id: job.args["order_id"] for job in jobs_in(application)} == ids


async def test_the_ids_of_many_are_in_the_order_of_the_calls(client: Client, application: Engine) -> None:
    """Though keys are taken in their order, and some of the jobs are duplicates."""
    numbers = [5, 3, 9, 3, 1, 5]
    async with client.open() as unit:
        found = await settle(unit.execute(enqueue_many([once.call(number) for number in numbers])))
        ids = list(found.scalars())
        await settle(unit.commit())

    jobs = {job.id: job for job in jobs_in(application)}
    assert [jobs[id].args["order_id"] for id in ids] == numbers
    of_three, of_five = ({jobs[ids[place]].is_duplicate for place in places} for places in ((1, 3), (0, 5)))
    assert of_three == of_five == {True, False}


async def test_a_queued_holder_takes_over_what_a_duplicate_replaces(client: Client, application: Engine) -> None:
    """The arguments, and not the priority, of a job that is committed."""
    replacing = send.options(unique=Unique("one", on_clash="replace", replace=("args",)))
    async with client.open() as unit:
        await client.put(unit, (replacing, 1))
        await settle(unit.commit())
        await client.put(unit, (replacing.options(priority=9), 2, 'it\'s "new"'))
        await settle(unit.commit())

    holder, duplicate = jobs_in(application)
    assert duplicate.duplicate_of == holder.id
    assert (holder.args, holder.priority) == ({"order_id": 2, "note": 'it\'s "new"'}, 4)


async def test_a_clash_that_raises_is_an_integrity_error_that_a_savepoint_takes_back(
    client: Client, application: Engine
) -> None:
    """SQLAlchemy's, whatever the driver calls its own; and the transaction goes on."""
    raising = send.options(unique=Unique("one", on_clash="raise"))
    async with client.open() as unit:
        await client.put(unit, (raising, 1))
        savepoint = await settle(unit.begin_nested())
        with pytest.raises(IntegrityError, match="the unique key 'one' is held"):
            await client.put(unit, (raising, 2))
        await settle(savepoint.rollback())
        await client.put(unit, (send, 3))
        await settle(unit.commit())

    assert [job.args["order_id"] for job in jobs_in(application)] == [1, 3]
