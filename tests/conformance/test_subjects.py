"""Subjects of jobs, over every driver, in both Sessions and on plain connections."""

from __future__ import annotations

import uuid
from datetime import date
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, selectinload

from sa_jobqueue import Job, Registry, Subject, enqueue, enqueue_select, jobs_relationship, task
from tests.conformance.conftest import SESSIONS, Client, settle

registry = Registry()
sessions = pytest.mark.parametrize("client", SESSIONS, ids="-".join, indirect=True)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "about_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = jobs_relationship()


class Parcel(Base):
    __tablename__ = "about_parcel"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    jobs: Mapped[list[Job]] = jobs_relationship()


class Line(Base):
    __tablename__ = "about_line"
    place: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    parcel: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = jobs_relationship()


@task(registry=registry)
def ship(order: Order) -> None: ...


@task(registry=registry)
def plain(number: int) -> None: ...


@pytest.fixture
def tables(engine: Engine) -> Engine:
    """The engine that looks at the results, on a database with the application's tables."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return engine


async def test_jobs_with_and_without_a_subject_go_into_one_statement(client: Client, application: Engine) -> None:
    """In their order; one that has none has none."""
    subjects = [Subject("Order", "7"), None, Subject("qu\"o'te\\{}", "NULL"), Subject("Ä", '["ü\\n", 2]'), None]
    calls = [(plain.options(subject=one or False), number) for number, one in enumerate(subjects)]
    with client.watched() as sent:
        async with client.open() as unit:
            await client.put(unit, *calls)
            await settle(unit.commit())
    assert len([one for one in sent if "INSERT" in one]) == 1
    with Session(application) as session:
        assert [job.subject for job in session.scalars(select(Job).order_by(Job.id))] == subjects


@sessions
async def test_the_jobs_of_objects(client: Client, tables: Engine) -> None:
    """Of new ones, with each kind of key; found by the database, by the object, and back."""
    line = Line(place='a "b", ü\\', number=-3, parcel=uuid.uuid4(), day=date(2026, 1, 2))
    objects: list[Any] = [Order(), Parcel(), line]
    order = objects[0]
    async with client.open() as unit:
        unit.add_all(objects)
        unit.add(enqueue(ship, order))
        await settle(unit.flush())
        unit.add_all([enqueue(plain.options(subject=one), place) for place, one in enumerate(objects)])
        await settle(unit.commit())
        kinds: list[Any] = [Order, Parcel, Line]
        for place, kind in enumerate(kinds):
            number = Job.args["number"].as_integer()
            wanted = select(kind).where(kind.jobs.any(number == place)).options(selectinload(kind.jobs))
            found = (await settle(unit.scalars(wanted))).one()
            assert [job.args.get("number") for job in found.jobs] == ([None, 0] if kind is Order else [place])
            about = Subject.of(found)
            assert {job.subject for job in found.jobs} == {about}
            assert await settle(unit.get(*about.identity(Base))) is found
            same = select(number).where(Job.subject == about, number.is_not(None))
            assert (await settle(unit.scalars(same))).all() == [place]
            await settle(unit.refresh(found, ["jobs"]))  # as a lazy load does
            assert found.jobs[-1].subject == about


@sessions
async def test_of_the_rows_of_a_query(client: Client, tables: Engine) -> None:
    """The database writes the ids as Python does."""
    async with client.open() as unit:
        unit.add_all([Order(), Line(place="a", number=1, parcel=uuid.uuid4(), day=date(2026, 1, 2))])
        await settle(unit.commit())
        for kind, number in ((Order, Order.id), (Line, Line.number)):
            await settle(unit.execute(enqueue_select(plain, select(number), subject=kind)))
            found = (await settle(unit.scalars(select(kind).options(selectinload(kind.jobs))))).one()
            assert [job.subject for job in found.jobs] == [Subject.of(found)]
        await settle(unit.commit())
