"""Handlers that take mapped objects, in workers: loaded in their session, locked, missing, superseded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, model_validator
from sqlalchemy import Engine, event, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session, joinedload, object_session, selectinload

from sa_jobqueue import (
    AsyncJobContext,
    Attempt,
    Fresh,
    Job,
    JobContext,
    JobStatus,
    Load,
    Middleware,
    Registry,
    RetryPolicy,
    Workflow,
    add_middleware,
    enqueue,
    remove_middleware,
    task,
)
from sa_jobqueue.arguments import loading
from sa_jobqueue.errors import PayloadError
from tests.support import orders
from tests.support.orders import Article, Base, Document, Invoice, Letter, Line, Order, Parcel, Stock
from tests.support.working import add, add_one, drain, job_of, worker_for


@pytest.fixture
def tables(engine: Engine) -> Engine:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return engine


def store(engine: Engine, *objects: Any) -> None:
    """Commit objects of the application's; they stay loaded."""
    with Session(engine, expire_on_commit=False) as session:
        session.add_all(objects)
        session.commit()


def notes(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return list(session.scalars(select(Order.note).order_by(Order.id)))


@contextmanager
def sent(engine: Engine) -> Iterator[list[str]]:
    """The texts of the statements that go by this engine."""
    texts: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        texts.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield texts
    event.remove(engine, "before_cursor_execute", note)


# ---- loaded


async def test_a_handler_gets_the_object_in_its_session(
    tables: Engine, async_engine: AsyncEngine, registry: Registry
) -> None:
    """Of both kinds, with a context and without; what it writes commits with the completion."""

    @task(registry=registry, name="def")
    def with_context(ctx: JobContext, order: Order, said: str) -> None:
        assert object_session(order) is ctx.session
        order.note = said

    @task(registry=registry, name="without")
    def without(order: Order, *, said: str) -> None:
        order.note = said

    @task(registry=registry, name="async def")
    async def async_with_context(ctx: AsyncJobContext, order: Order, said: str) -> None:
        assert object_session(order) is ctx.session.sync_session
        order.note = said

    @task(registry=registry, name="async without")
    async def async_without(order: Order, *, said: str) -> None:
        order.note = said

    store(tables, *(new := [Order() for _ in range(4)]))
    ids = add(
        tables,
        enqueue(with_context, new[0], "a"),
        enqueue(without, new[1], said="b"),
        enqueue(async_with_context, new[2], "c"),
        enqueue(async_without, new[3], said="d"),
    )
    await worker_for(tables, registry, async_engine=async_engine).serve(until_idle=True)
    assert [job_of(tables, id).status for id in ids] == [JobStatus.COMPLETED] * 4
    assert notes(tables) == ["a", "b", "c", "d"]


async def test_a_new_object_goes_from_one_handler_to_the_next(
    tables: Engine, async_engine: AsyncEngine, registry: Registry
) -> None:
    """It is added to the handler's session with its job, in both kinds."""

    @task(registry=registry, name="def")
    def handler(ctx: JobContext, order: Order) -> None:
        more = Order(note=f"{order.note}, from a def")
        ctx.session.add_all([enqueue(async_handler, more), more])

    @task(registry=registry, name="async def")
    async def async_handler(ctx: AsyncJobContext, order: Order) -> None:
        if order.note.count(",") < 3:
            more = Order(note=f"{order.note}, from an async def")
            ctx.session.add_all([enqueue(handler, more), more])

    first = Order(note="the first")
    with Session(tables) as session:
        session.add_all([enqueue(handler, first), first])
        session.commit()
    await worker_for(tables, registry, async_engine=async_engine).serve(until_idle=True)
    assert notes(tables)[-1] == "the first, from a def, from an async def, from a def"
    with Session(tables) as session:
        assert {job.status for job in session.scalars(select(Job))} == {JobStatus.COMPLETED}


@dataclass
class Shipment:
    order: Order
    lines: list[Line]
    note: str = ""


class Request(BaseModel):
    order: Annotated[Order, Load(selectinload(Order.lines))]
    copies: int = 1

    @model_validator(mode="after")
    def _check(self) -> Request:
        if self.order.note == "refused":
            raise ValueError("no such request")
        return self


def test_several_in_all_the_places_where_they_may_stand(tables: Engine, registry: Registry) -> None:
    """In containers, dataclasses and models, with their default, by position and by keyword."""
    seen: list[Any] = []

    @task(registry=registry, name="many")
    def many(
        first: Order,
        /,
        orders: list[Order],
        by_name: dict[str, Order],
        shipment: Shipment,
        request: Request,
        none: Order | None,
        unsaid: Order | None = None,
        *rest: Line,
        **more: Stock,
    ) -> None:
        one, two = orders[0], by_name["two"]
        assert first is one is orders[2] is shipment.order is request.order
        assert orders[1] is two
        assert (type(shipment), type(request)) == (Shipment, Request)
        assert "lines" not in inspect(request.order).unloaded
        seen.extend([none, unsaid, [line.place for line in shipment.lines], [line.place for line in rest]])
        seen.append({name: stock.place for name, stock in more.items()})

    one, two = Order(note="1"), Order(note="2")
    lines = [Line(order=one, place=place) for place in range(3)]
    stock = Stock(place="left", number=1)
    store(tables, one, two, *lines, stock)
    id = add_one(
        tables,
        enqueue(
            many, one, [one, two, one], {"two": two}, Shipment(one, lines[::-1]), Request(order=one), None, None, *lines[1:],
            of_stock=stock,
        ),
    )  # fmt: skip
    drain(tables, registry)
    assert job_of(tables, id).errors == []
    assert seen == [None, None, [2, 1, 0], [1, 2], {"of_stock": "left"}]


def test_sets_of_objects(tables: Engine, registry: Registry) -> None:
    """Stored and new ones."""
    seen: list[Any] = []

    @task(registry=registry, name="sets")
    def sets(orders: set[Order], lines: frozenset[Line]) -> None:
        seen.extend([{order.note for order in orders}, {(line.order_id, line.place) for line in lines}])

    store(tables, old := Order(note="old"))
    with Session(tables) as session:
        line = Line(order=(new := Order(note="new")), place=1)
        session.add_all([enqueue(sets, {old, new}, frozenset({line})), line])
        session.commit()
        key = (new.id, 1)
    drain(tables, registry)
    assert seen == [{"old", "new"}, {key}]


@pytest.mark.parametrize("page", [20, 5_000])
def test_a_list_takes_one_statement(
    tables: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """For thousands of objects, in the order of the list."""
    monkeypatch.setattr(loading, "_PAGE", page)
    seen: list[int] = []

    @task(registry=registry, name="list")
    def handler(orders: list[Order]) -> None:
        seen.extend(order.id for order in orders)

    store(tables, *(many := [Order() for _ in range(50)]))
    ids = [order.id for order in reversed(many)]
    add(tables, enqueue(handler, many[::-1]))
    with sent(tables) as texts:
        drain(tables, registry)
    assert seen == ids
    assert len([one for one in texts if "an_order" in one]) == (3 if page == 20 else 1)


def test_keys_and_classes_of_all_kinds(tables: Engine, registry: Registry) -> None:
    """A base class loads what the row is."""
    seen: list[Any] = []

    @task(registry=registry, name="kinds")
    def kinds(documents: list[Document], one: Document, invoice: Invoice, parcel: Parcel, lines: list[Line]) -> None:
        seen.extend(type(document) for document in [*documents, one, invoice])
        seen.extend([parcel.id, [(line.order_id, line.place) for line in lines]])

    letter, invoice, plain, parcel, order = Letter(), Invoice(total=3), Document(), Parcel(), Order()
    lines = [Line(order=order, place=place) for place in (5, 3)]
    store(tables, letter, invoice, plain, parcel, order, *lines)
    add(tables, enqueue(kinds, [invoice, plain, letter], letter, invoice, parcel, lines))
    drain(tables, registry)
    assert seen == [Invoice, Document, Letter, Letter, Invoice, parcel.id, [(1, 5), (1, 3)]]


@pytest.mark.parametrize("number", [1, 2])
def test_for_update_locks_the_row(tables: Engine, registry: Registry, number: int) -> None:
    """Until the job ends: another transaction would have to wait. Of a list, too."""
    free: list[int] = []

    @task(registry=registry, name="locks")
    def locks(orders: list[Annotated[Order, Load(selectinload(Order.lines), for_update=True)]]) -> None:
        with tables.connect() as other:
            free.append(len(other.execute(text("SELECT id FROM an_order FOR UPDATE SKIP LOCKED")).all()))
        assert "lines" not in inspect(orders[0]).unloaded

    store(tables, *(many := [Order() for _ in range(number)]))
    add(tables, enqueue(locks, many))
    drain(tables, registry)
    assert free == [0]


def test_for_update_in_another_way(tables: Engine, registry: Registry) -> None:
    """The arguments of `with_for_update` travel."""

    @task(registry=registry, name="locks")
    def locks(
        order: Annotated[Order, Load(joinedload(Order.customer), for_update={"key_share": True, "of": Order})],
    ) -> None: ...

    store(tables, order := Order())
    add(tables, enqueue(locks, order))
    with sent(tables) as texts:
        drain(tables, registry)
    assert "FOR NO KEY UPDATE OF an_order" in next(one for one in texts if "an_order" in one)


def test_each_attempt_loads_them_again(tables: Engine, registry: Registry) -> None:
    """And sees what was committed meanwhile; what the failed attempt wrote is gone."""
    seen: list[str] = []

    @task(registry=registry, name="twice", retry=RetryPolicy(base=0.001, jitter=0))
    def twice(ctx: JobContext, order: Order) -> None:
        seen.append(order.note)
        order.note = "half done"
        ctx.session.flush()
        if len(seen) == 1:
            ctx.session.rollback()
            with Session(tables) as other:
                other.get_one(Order, 1).note = "changed"
                other.commit()
            raise ValueError("once more")

    store(tables, order := Order(note="new"))
    add(tables, enqueue(twice, order))
    drain(tables, registry)
    assert seen == ["new", "changed"]
    assert notes(tables) == ["half done"]


def test_in_a_child_process(tables: Engine, url: str) -> None:
    """It loads them itself."""
    store(tables, order := Order())
    store(tables, Line(order_id=order.id, place=1))
    id = add_one(tables, enqueue(orders.pack, order))
    drain(url, orders.registry)
    assert job_of(tables, id).errors == []
    assert notes(tables) == ["packed, 1 lines"]


def test_middleware_is_around_the_loading(tables: Engine, registry: Registry) -> None:
    """So a trace shows its time, and what is discarded has gone through it."""
    seen: list[str] = []

    class Watch(Middleware):
        @contextmanager
        def around(self, attempt: Attempt) -> Iterator[None]:
            with sent(tables) as texts:
                try:
                    yield
                finally:
                    seen.extend(one for one in texts if "an_order" in one)

    @task(registry=registry, name="gone")
    def gone(order: Order) -> None: ...

    store(tables, order := Order())
    add(tables, enqueue(gone, order))
    add_middleware(watch := Watch())
    try:
        drain(tables, registry)
    finally:
        remove_middleware(watch)
    assert len(seen) == 1


def test_members_of_a_workflow_take_objects(tables: Engine, registry: Registry) -> None:
    """Beside the results of others. A new object must be flushed first: the graph is not written by the flush of its objects."""

    @task(registry=registry, name="measure", record=True)
    def measure(order: Order) -> int:
        return len(order.lines)

    @task(registry=registry, name="say")
    def say(lines: int, order: Order) -> None:
        order.note = f"{lines} lines"

    with Session(tables) as session:
        order = Order(lines=[Line(place=1)])
        workflow = Workflow("orders")
        with pytest.raises(PayloadError, match="flush first"):
            workflow.add(measure, order)
        session.add(order)
        session.flush()
        workflow.then(workflow.add(measure, order), say, order)
        session.add(workflow)
        session.commit()
    drain(tables, registry)
    assert notes(tables) == ["1 lines"]


# ---- not there


def gone_order(engine: Engine) -> Order:
    """An object whose row is deleted after its job was made."""
    store(engine, order := Order())
    return order


def run_without(engine: Engine, registry: Registry, job: Job) -> Job:
    """The job after a worker has run it, when the orders were gone."""
    id = add_one(engine, job)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM an_order"))
    drain(engine, registry)
    return job_of(engine, id)


@pytest.mark.parametrize("many", [False, True])
def test_a_job_whose_object_is_gone_is_discarded(tables: Engine, registry: Registry, many: bool) -> None:
    """With the reason; it is not tried again."""

    @task(registry=registry, name="gone")
    def handler(orders: list[Order]) -> None:
        raise AssertionError("it was called")

    store(tables, *(some := [Order() for _ in range(2 if many else 1)]))
    job = run_without(tables, registry, enqueue(handler, some))
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.errors[-1]["message"] == ("argument orders: Order 1 is not there: it was deleted, or never committed")


def test_or_its_attempt_fails(tables: Engine, registry: Registry) -> None:
    """By an error, which is retried as any other."""

    @task(registry=registry, name="gone", max_attempts=2, retry=RetryPolicy(base=0.001, jitter=0))
    def handler(order: Annotated[Order, Load(missing="error")]) -> None: ...

    job = run_without(tables, registry, enqueue(handler, gone_order(tables)))
    assert (job.status, job.attempt) == (JobStatus.FAILED, 2)
    assert [one["type"] for one in job.errors] == ["sa_jobqueue.errors.ObjectMissing"] * 2


def test_or_its_handler_gets_none(tables: Engine, registry: Registry) -> None:
    """In the place of the object, in a list too."""
    seen: list[Any] = []

    @task(registry=registry, name="gone")
    def handler(
        order: Annotated[Order | None, Load(missing="none")],
        orders: list[Annotated[Order | None, Load(missing="none")]],
    ) -> None:
        seen.extend([order, orders])

    order = gone_order(tables)
    assert run_without(tables, registry, enqueue(handler, order, [order, order])).status == JobStatus.COMPLETED
    assert seen == [None, [None, None]]


async def test_it_is_so_for_async_handlers(tables: Engine, async_engine: AsyncEngine, registry: Registry) -> None:
    """All three."""
    seen: list[Any] = []

    @task(registry=registry, name="discards")
    async def discards(order: Order) -> None: ...

    @task(registry=registry, name="fails", max_attempts=1)
    async def fails(order: Annotated[Order, Load(missing="error")]) -> None: ...

    @task(registry=registry, name="goes on")
    async def goes_on(ctx: AsyncJobContext, order: Annotated[Order | None, Load(missing="none")]) -> None:
        seen.append(order)

    order = gone_order(tables)
    ids = add(tables, *(enqueue(one, order) for one in (discards, fails, goes_on)))
    with tables.begin() as connection:
        connection.execute(text("DELETE FROM an_order"))
    await worker_for(tables, registry, async_engine=async_engine).serve(until_idle=True)
    jobs = [job_of(tables, id) for id in ids]
    assert [job.status for job in jobs] == [JobStatus.FAILED, JobStatus.FAILED, JobStatus.COMPLETED]
    assert [job.errors[-1]["type"] for job in jobs[:2]] == ["Discard", "sa_jobqueue.errors.ObjectMissing"]
    assert seen == [None]


# ---- another version


def test_a_job_for_an_older_version_is_superseded(tables: Engine, registry: Registry) -> None:
    """Its handler is not called; that of the current version is."""
    seen: list[int] = []

    @task(registry=registry, name="fresh")
    def fresh(article: Annotated[Article, Fresh(), Load(for_update=True)]) -> None:
        seen.append(article.price)

    with Session(tables) as session:
        article = Article(price=1)
        session.add_all([article, old := enqueue(fresh, article)])
        session.commit()
        article.price = 2
        session.add(new := enqueue(fresh, article))
        session.commit()
        ids = old.id, new.id
    drain(tables, registry)
    jobs = [job_of(tables, id) for id in ids]
    assert [job.status for job in jobs] == [JobStatus.FAILED, JobStatus.COMPLETED]
    assert (jobs[0].errors[-1]["type"], jobs[0].errors[-1]["message"]) == ("Discard", "superseded")
    assert seen == [2]


def test_without_fresh_the_version_does_not_matter(tables: Engine, registry: Registry) -> None:
    """The handler takes the row as it is."""
    seen: list[int] = []

    @task(registry=registry, name="any")
    def handler(article: Article) -> None:
        seen.append(article.price)

    with Session(tables) as session:
        article = Article(price=1)
        session.add_all([article, enqueue(handler, article)])
        session.commit()
        article.price = 2
        session.commit()
    drain(tables, registry)
    assert seen == [2]


# ---- what cannot be loaded


def test_stored_keys_that_do_not_fit_fail_the_job(tables: Engine, registry: Registry) -> None:
    """At once; it can be retried after a fix."""

    @task(registry=registry, name="typed")
    def typed(order: Order) -> None: ...

    @task(registry=registry, name="model")
    def model(request: Request) -> None: ...

    store(tables, Order(note="refused"))
    ids = add(
        tables,
        enqueue("typed", order="x"),
        enqueue("typed", order={"unflushed": "1"}),
        enqueue("model", request={"order": 1}),
    )
    drain(tables, registry)
    jobs = [job_of(tables, id) for id in ids]
    assert [(job.status, job.attempt) for job in jobs] == [(JobStatus.FAILED, 1)] * 3
    said = [job.errors[-1]["message"] for job in jobs]
    assert "'x' is no key of Order (int)" in said[0]
    assert said[1] == "argument order: the Order had no key yet when the job was written"
    assert said[2].startswith("a Request cannot be made of the stored arguments:")


def test_by_name_and_from_sql_it_is_the_key(tables: Engine, registry: Registry) -> None:
    """Producers that do not know the class."""

    @task(registry=registry, name="ship")
    def ship(order: Order, lines: list[Line]) -> None:
        order.note = f"{len(lines)} lines"

    store(tables, one := Order(), two := Order())
    store(tables, Line(order_id=one.id, place=1))
    add(tables, enqueue("ship", order=1, lines=[[1, 1]]))
    with tables.begin() as connection:
        connection.execute(
            text("INSERT INTO sa_jobqueue.job (task, args) VALUES ('ship', '{\"order\": 2, \"lines\": []}')")
        )
    drain(tables, registry)
    assert notes(tables) == ["1 lines", "0 lines"]
    assert two.id == 2


def test_without_an_engine_of_its_kind_the_message_says_so(tables: Engine, registry: Registry) -> None:
    """As for any use of `ctx.session`."""

    @task(registry=registry, name="async", max_attempts=1)
    async def handler(order: Order) -> None: ...

    store(tables, order := Order())
    id = add_one(tables, enqueue(handler, order))
    asyncio.run(worker_for(tables, registry).serve(until_idle=True))
    assert "AsyncEngine" in job_of(tables, id).errors[0]["message"]
