"""An application that has mapped its own job table: with a tenant, which is a row of another table, and a relationship."""

from __future__ import annotations

import enum
import uuid
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import CheckConstraint, DateTime, ForeignKey, Index, MetaData, Numeric, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_jobqueue import AsyncJobContext, Enqueue, JobContext, JobMixin, Registry, Workflow, jobs_relationship, task

SCHEMA = "own_queue"


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Tenant(Base):
    __tablename__ = "own_tenant"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    jobs: Mapped[list[Job]] = relationship(back_populates="tenant", order_by="Job.id")


class Job(JobMixin, Base):
    __table_args__ = (
        Index("ix_job_tenant_status", "tenant_id", "status"),
        CheckConstraint("importance >= 0", name="importance"),
        {"schema": SCHEMA},
    )

    tenant_id: Mapped[int | None] = mapped_column(ForeignKey(Tenant.id), index=True)
    importance: Mapped[int] = mapped_column(server_default="1")
    source: Mapped[str | None] = mapped_column(Text)
    tenant: Mapped[Tenant | None] = relationship(back_populates="jobs")


Tenant.about = jobs_relationship(Tenant, job=Job)  # type: ignore[attr-defined]


class Note(Base):
    """What a handler writes; and a foreign key to the jobs."""

    __tablename__ = "own_note"

    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]
    job_id: Mapped[int | None] = mapped_column(ForeignKey(Job.id, ondelete="CASCADE"))


registry = Registry(job=Job)
enqueue = Enqueue(Job)


@task(registry=registry, record=True)
def write_note(ctx: JobContext, text: str) -> int:
    ctx.progress(0.5, "half")
    ctx.session.add(Note(text=text, job_id=ctx.job_id))
    return len(text)


@task(registry=registry)
async def write_note_later(ctx: AsyncJobContext, text: str) -> None:
    ctx.session.add(Note(text=text))


@task(registry=registry)
def greet(ctx: JobContext, tenant: Tenant) -> None:
    ctx.session.add(Note(text=f"hello, {tenant.name}", job_id=ctx.job_id))


@task(registry=registry)
def add_another(ctx: JobContext, text: str) -> None:
    ctx.session.add(Note(text=text))
    more = Workflow.in_schema_of(Job).of(ctx)
    more.add(write_note, "added")
    ctx.session.execute(more.insert())


@task(registry=registry, executor="process")
def write_note_in_a_child(ctx: JobContext, text: str) -> None:
    source = ctx.session.get_one(Job, ctx.job_id).source
    ctx.session.add(Note(text=f"{text} of {source}", job_id=ctx.job_id))


@task(registry=registry, max_attempts=1)
def fail(text: str) -> None:
    raise ValueError(text)


class TypedBase(DeclarativeBase):
    """Of a second application in the same process."""


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class TypedJob(JobMixin, TypedBase):
    """With columns of whatever types."""

    __table_args__ = ({"schema": "typed_queue"},)

    color: Mapped[Color | None]
    document: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    number: Mapped[uuid.UUID | None]
    day: Mapped[date | None]
    price: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    urgent: Mapped[bool | None]
    share: Mapped[float | None]
    at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
