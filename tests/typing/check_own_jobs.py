"""What type checkers make of a job table of the application's own: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from sqlalchemy import ForeignKey, MetaData, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_jobqueue import (
    Enqueue,
    JobContext,
    JobExplanation,
    JobMixin,
    JobStatus,
    Registry,
    Schedule,
    Worker,
    companions_of,
    enqueue_many,
    explain_job,
    task,
    wait_for,
)
from sa_jobqueue.migrations import OwnTable
from sa_jobqueue.statements import cancel_jobs, claim_jobs, retry_jobs
from sa_jobqueue.testing import Explanation, JobQueue, Ran, explain


class Base(DeclarativeBase):
    metadata = MetaData(schema="shop_queue")


class Tenant(Base):
    __tablename__ = "tenant"
    id: Mapped[int] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = relationship(back_populates="tenant")


class Job(JobMixin, Base):
    tenant_id: Mapped[int] = mapped_column(ForeignKey(Tenant.id))
    tenant: Mapped[Tenant] = relationship(back_populates="jobs")


registry = Registry(job=Job)
enqueue = Enqueue(Job)
assert_type(enqueue, Enqueue[Job])


@task(registry=registry, record=True)
def send(ctx: JobContext, number: int) -> str:
    return str(number)


job = enqueue(send, 7)
assert_type(job, Job)
assert_type(job.tenant_id, int)
assert_type(job.status, JobStatus)
assert_type(job.id, int)
assert_type(job.is_live, bool)
assert_type(job.progress, float | None)
assert_type(send.result(job), str)
assert_type(enqueue("by.name", number=7), Job)
assert_type(enqueue(send.options(columns={"tenant_id": 7}), 7), Job)
job.tenant = Tenant()

enqueue(send, "seven")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
enqueue(send)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
job.tenant_id = "seven"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
Enqueue(Tenant)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
Registry(job=Tenant)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def look(session: Session) -> None:
    found = session.scalars(select(Job).where(Job.tenant_id == 7, Job.is_live, Job.status == "queued")).all()
    assert_type(found, Sequence[Job])
    assert_type(session.get_one(Tenant, 7).jobs[0].tenant_id, int)
    session.execute(cancel_jobs(Job.tenant_id == 7, job=Job))
    session.execute(retry_jobs(Job.tenant_id == 7, job=Job))
    session.execute(claim_jobs(worker="me", queues={"default": 1}, lease=60, job=Job))
    session.execute(enqueue_many([send.call(1)], job=Job))
    session.execute(cancel_jobs(Job.tenant_id == 7, job=Tenant))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def look_async(session: AsyncSession) -> None:
    assert_type((await session.scalars(select(Job))).all(), Sequence[Job])
    assert_type(await explain_job(session, 7, job=Job), JobExplanation)


def test(session: Session) -> None:
    assert_type(explain(session, job=Job), Explanation)
    kit = JobQueue(session, registry=registry)
    assert_type(kit.work_one(job), Ran)


def work(url: str) -> Worker:
    OwnTable(Job)
    assert_type(companions_of(Job).schedule, type[Schedule])
    return Worker(url, {"default": 1}, registry=registry, job=Job)


def wait(worker: Worker) -> None:
    assert_type(wait_for(worker.engine, 7, timeout=1, job=Job).status, JobStatus | None)
