"""`enqueue(b.options(after=job))`: a job that waits for another job of its session."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Registry, Schedule, Workflow, enqueue, enqueue_many, enqueue_select, every, task
from sa_jobqueue.errors import OptionError
from sa_jobqueue.tasks.tasks import AnyTask
from sa_jobqueue.testing import drain


@pytest.fixture
def ship(registry: Registry) -> AnyTask:
    @task(registry=registry, name="ship", max_attempts=1, version=2)
    def ship(place: str) -> None:
        if place == "nowhere":
            raise ValueError(place)

    ship.upcast(1)(dict)
    return ship


def test_a_job_waits_for_the_job_that_it_names(engine: Engine, registry: Registry, ship: AnyTask) -> None:
    """Two of them, and a chain, in whatever order they are added; beside plain jobs. All jobs of a chain are members of a workflow."""
    with Session(engine) as session:
        first = enqueue(ship.options(queue="a", key="k", tags=["x"]), "first")
        second = enqueue(ship.options(after=first, delay=0), "second")
        third = enqueue(ship.options(after=second), "third")
        other = enqueue(ship.options(after=first), "other")
        plain = enqueue(ship, "plain")
        session.add_all([third, plain, second, first, other])
        session.flush()
        assert [job.status for job in (first, second, third, other, plain)] == [
            JobStatus.QUEUED,
            JobStatus.BLOCKED,
            JobStatus.BLOCKED,
            JobStatus.BLOCKED,
            JobStatus.QUEUED,
        ]
        assert second.blocked_by == first.id
        assert {job.workflow_id for job in (first, second, third, other)} == {first.workflow_id}
        assert plain.workflow_id is None
        assert (first.key, first.queue, first.meta, second.extras) == ("k", "a", {"tags": ["x"]}, {"version": 2})
        session.refresh(second)
        assert (second.status, second.args) == (JobStatus.BLOCKED, {"place": "second"})
        ran = [ran.args["place"] for ran in drain(session, registry=registry)]
        assert sorted(ran) == ["first", "other", "plain", "second", "third"]
        assert ran.index("first") < ran.index("second") < ran.index("third")
        session.rollback()


async def test_a_job_is_cancelled_if_the_job_that_it_waits_for_fails(
    async_engine: AsyncEngine, registry: Registry, ship: AnyTask
) -> None:
    """As a member of a workflow is; in an AsyncSession."""
    async with AsyncSession(async_engine) as session:
        first = enqueue(ship, "nowhere")
        second = enqueue(ship.options(after=first), "second")
        session.add_all([first, second])
        await session.flush()
        assert second.id > first.id
        await drain(session, registry=registry, raise_errors=False)
        await session.refresh(second)
        assert second.status is JobStatus.CANCELLED
        await session.rollback()


def test_a_job_that_is_not_new_in_the_session_is_refused_before_any_sql(engine: Engine, ship: AnyTask) -> None:
    """The error names both, and the session goes on."""
    with Session(engine) as session:
        there = enqueue(ship, "there")
        session.add(there)
        session.flush()
        session.add(enqueue(ship.options(after=there), "late"))
        with pytest.raises(
            OptionError,
            match=f"a job of 'ship' is to run after job {there.id} of 'ship', which is in the database already",
        ):
            session.flush()
        session.expunge(next(iter(session.new)))
        assert session.scalars(select(Job.id).where(Job.id == there.id)).one() == there.id
        session.add(enqueue(ship.options(after=enqueue(ship, "elsewhere")), "late"))
        with pytest.raises(OptionError, match="after a job of 'ship' that was not added to this session"):
            session.flush()
        session.rollback()


def test_what_makes_many_jobs_takes_no_job_to_wait_for(ship: AnyTask) -> None:
    """Each says what to do."""
    late = ship.options(after=enqueue(ship, "first"))
    for refused in (
        lambda: enqueue_many([late.call("x")]),
        lambda: enqueue_select(late, select(Job.queue.label("place"))),
        lambda: Workflow("w").add(late, "x"),
    ):
        with pytest.raises(OptionError, match=r"after= is for session\.add"):
            refused()
    for refused in (lambda: Schedule(every(60), late, "x"), lambda: Schedule(every(60), late.call("x"))):
        with pytest.raises(OptionError, match="cannot wait for another job: set after=False"):
            refused()
    assert late.options(after=False).call("x").after is None
    with pytest.raises(OptionError, match=r"after must be a job, enqueue\(...\), or False, not 7"):
        ship.options(after=7)  # type: ignore[arg-type]


def test_a_chain_that_was_rolled_back_leaves_nothing(engine: Engine, ship: AnyTask) -> None:
    """The jobs are made again by `enqueue`."""
    with Session(engine) as session:
        first = enqueue(ship, "first")
        session.add_all([first, enqueue(ship.options(after=first), "second")])
        session.flush()
        id = first.id
        session.rollback()
        assert session.scalars(select(Job.id).where(Job.id >= id)).all() == []
