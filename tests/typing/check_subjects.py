"""What type checkers make of the jobs of a row: read by mypy and pyright, never run."""

from __future__ import annotations

from typing import assert_type

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    WriteOnlyMapped,
    aliased,
    declared_attr,
    mapped_column,
)

from sa_jobqueue import Job, Subject, TaskName, enqueue, enqueue_select, jobs_relationship, task


class Base(DeclarativeBase): ...


class HasJobs:
    @declared_attr
    def jobs(cls) -> Mapped[list[Job]]:
        return jobs_relationship()


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = jobs_relationship(lazy="selectin")


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    jobs: WriteOnlyMapped[Job] = jobs_relationship()


class Parcel(HasJobs, Base):
    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)


class Data(MappedAsDataclass, DeclarativeBase): ...


class Voucher(Data):
    __tablename__ = "vouchers"
    id: Mapped[int] = mapped_column(init=False, primary_key=True)
    value: Mapped[int]
    jobs: Mapped[list[Job]] = jobs_relationship(init=False)


@task
def ship(order: Order) -> None: ...


def jobs_of_objects(session: Session, order: Order, customer: Customer, parcel: Parcel, voucher: Voucher) -> None:
    assert_type(order.jobs, list[Job])
    assert_type(parcel.jobs, list[Job])
    assert_type(session.scalars(customer.jobs.select()).all()[0], Job)
    select(Order).where(Order.jobs.any(Job.status == "failed"))
    select(Order).where(Customer.jobs.any(Job.subject == Subject.of(customer)))
    assert_type(voucher.jobs, list[Job])
    Voucher(7)
    jobs_relationship(init=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    jobs_relationship(lazy="never")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    jobs_relationship(order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def subjects(session: Session, job: Job) -> None:
    assert_type(job.subject, Subject | None)
    assert_type(job.subject_type, str | None)
    select(Job).where(Job.subject.in_([Subject("Order", "7")]))
    if job.subject is not None:
        assert_type(session.get(*job.subject.identity(Order)), Order | None)
        assert_type(session.get_one(*job.subject.identity(Base)), Base)


async def in_async_sessions(session: AsyncSession, job: Job) -> None:
    if job.subject is not None:
        assert_type(await session.get(*job.subject.identity(Order)), Order | None)


def jobs_say_what_they_are_about(order: Order, customer: Customer) -> None:
    assert_type(enqueue(ship.options(subject=customer), order), Job)
    enqueue(ship.options(subject=False), order)
    enqueue(TaskName("pack").options(subject=Subject("Order", "7")), order=7)
    enqueue_select("pack", select(Order.id), subject=Order)
    other = aliased(Order)
    enqueue_select("pack", select(other.id), subject=other)
    enqueue_select("pack", select(Order.id), subject=Order.id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
