"""Objects as arguments, over every driver, in both Sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine, inspect, select
from sqlalchemy.orm import Session

from sa_jobqueue import Fresh, Job, JobStatus, Registry, enqueue, enqueue_many, task
from tests.conformance.conftest import SESSIONS, Client, settle
from tests.support.orders import Article, Base, Customer, Line, Order, Parcel, Report, Stock

registry = Registry()
sessions = pytest.mark.parametrize("client", SESSIONS, ids="-".join, indirect=True)


@task(registry=registry)
def ship(order: Order, parcel: Parcel | None = None) -> None: ...


@task(registry=registry)
def weigh(lines: list[Line], stock: Stock | None = None) -> None: ...


@task(registry=registry)
def reprice(article: Annotated[Article, Fresh()]) -> None: ...


@task(registry=registry)
def build(report: Report) -> None: ...


@pytest.fixture
def tables(engine: Engine) -> Engine:
    """The engine that looks at the results, on a database with the application's tables."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return engine


def args_of(engine: Engine) -> list[Any]:
    with Session(engine) as session:
        return list(session.scalars(select(Job.args).order_by(Job.id)))


ORDERS: dict[str, Callable[[Job, Order], list[Any]]] = {
    "job first": lambda job, order: [job, order],
    "order first": lambda job, order: [order, job],
    "by cascade": lambda job, order: [job, Customer(orders=[order])],
    "by another cascade": lambda job, order: [Line(order=order, place=1), job],
}


@sessions
async def test_an_object_and_its_job_go_into_one_flush(client: Client, tables: Engine) -> None:
    """In any order, and also if a cascade brings the object."""
    for way, added in ORDERS.items():
        order = Order()
        job = enqueue(ship, order)
        async with client.open() as unit:
            unit.add_all(added(job, order))
            await settle(unit.flush())
            assert job.args == {"order": order.id}, way
            assert (job.id is not None, job.status, job.errors) == (True, JobStatus.QUEUED, []), way
            assert inspect(job).persistent, way
            assert job in unit, way
            await settle(unit.commit())
    assert len(args_of(tables)) == len(ORDERS)


@sessions
async def test_many_take_two_statements(client: Client, tables: Engine) -> None:
    """500 orders and 500 jobs; some are delayed, and some have a key."""
    orders = [Order() for _ in range(500)]
    some = ship.options(delay=60), ship.options(key="a"), ship
    jobs = [enqueue(some[place % 3], order) for place, order in enumerate(orders)]
    async with client.open() as unit:
        unit.add_all([*jobs, *orders])
        with client.watched() as sent:
            await settle(unit.flush())
        assert len([one for one in sent if "INSERT" in one]) == 2
        ids = [order.id for order in orders]
        assert [job.args["order"] for job in jobs] == ids
        assert {job.key for job in jobs} == {None, "a"}
        assert {(job.run_at - job.created_at).total_seconds() for job in jobs} == {0.0, 60.0}
        await settle(unit.commit())
    assert sorted(args["order"] for args in args_of(tables)) == sorted(ids)


@sessions
async def test_keys_of_all_kinds(client: Client, tables: Engine) -> None:
    """Composite ones, with a part of another new row or of the server's; and uuids of the server's."""
    order, parcel, stock = Order(), Parcel(), Stock(place="left")
    lines = [Line(order=order, place=place) for place in (2, 1)]
    async with client.open() as unit:
        unit.add_all([enqueue(weigh, lines, stock), enqueue(ship, order, parcel), *lines, parcel, stock])
        await settle(unit.flush())
        expected = [
            {"lines": [[order.id, 2], [order.id, 1]], "stock": ["left", 7]}, {"order": order.id, "parcel": str(parcel.id)},
        ]  # fmt: skip
        await settle(unit.commit())
    assert args_of(tables) == expected


@sessions
async def test_a_true_cycle(client: Client, tables: Engine) -> None:
    """The report refers to the job, and the job to the report: one is inserted first, and completed."""
    reports = [Report(), Report()]
    jobs = [enqueue(build, report) for report in reports]
    for report, job in zip(reports, jobs, strict=True):
        report.job = job
    async with client.open() as unit:
        unit.add_all(reports)
        with client.watched() as sent:
            await settle(unit.flush())
        found = [job.args for job in jobs]
        assert found == [{"report": report.id} for report in reports]
        assert [report.job_id for report in reports] == [job.id for job in jobs]
        assert len([one for one in sent if one.startswith("UPDATE")]) == 1
        await settle(unit.commit())
    assert args_of(tables) == found


@sessions
async def test_the_version_is_that_after_the_flush(client: Client, tables: Engine) -> None:
    """Of a new row, of one that the same flush changes, and of one that it does not."""
    article = Article(price=1)
    async with client.open() as unit:
        unit.add_all([article, enqueue(reprice, article)])
        await settle(unit.flush())
        unit.add(enqueue(reprice, article))
        await settle(unit.flush())
        article.price = 2
        unit.add(enqueue(reprice, article))
        await settle(unit.commit())
    assert [args["article"]["version"] for args in args_of(tables)] == [1, 1, 2]


@sessions
async def test_bulk_takes_calls_that_were_made_before_the_flush(client: Client, tables: Engine) -> None:
    """Their keys are looked up when the statement is made. Others may stand beside them."""
    orders = [Order(), Order()]
    calls = [ship.call(orders[0]), weigh.call([]), ship.options(key="a").call(orders[1])]
    async with client.open() as unit:
        unit.add_all(orders)
        await settle(unit.flush())
        await settle(unit.execute(enqueue_many(calls)))
        expected = [{"order": orders[0].id}, {"lines": []}, {"order": orders[1].id}]
        await settle(unit.commit())
    assert args_of(tables) == expected


async def test_bulk_takes_objects_that_were_flushed(client: Client, tables: Engine) -> None:
    """In Sessions and on plain connections."""
    with Session(tables, expire_on_commit=False) as session:
        orders = [Order() for _ in range(3)]
        session.add_all(orders)
        session.commit()
    async with client.open() as unit:
        await settle(unit.execute(enqueue_many(ship.call(order) for order in orders)))
        await settle(unit.commit())
    assert args_of(tables) == [{"order": order.id} for order in orders]
