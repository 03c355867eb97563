"""What `enqueue_select` enqueues, as workers and roles see it."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any, Literal

import pytest
from sqlalchemy import Engine, ForeignKey, Integer, Numeric, Text, func, literal, select, text
from sqlalchemy.exc import DataError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, column_property, deferred, mapped_column, relationship

from sa_jobqueue import Job, JobStatus, Registry, Unique, enqueue_select, task
from tests.support.databases import connect
from tests.support.waiting import wait_until
from tests.support.working import drain, working


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "selected_customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    orders: Mapped[list[Order]] = relationship(back_populates="customer")


class Order(Base):
    __tablename__ = "selected_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int | None] = mapped_column(ForeignKey(Customer.id))
    total: Mapped[Decimal] = mapped_column(Numeric(10, 2), default=Decimal(1))
    note: Mapped[str | None] = deferred(mapped_column(Text))
    doubled: Mapped[int] = column_property(id * 2)  # noqa: A003
    customer: Mapped[Customer | None] = relationship(back_populates="orders")


@pytest.fixture
def tables(engine: Engine) -> None:
    """Two customers, and four orders."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.execute(text("TRUNCATE selected_customers, selected_orders"))
        session.add_all([Customer(id=10), Customer(id=20)])
        session.flush()
        orders = {1: 10, 2: 10, 3: 20, 4: None}
        session.add_all([Order(id=id, customer_id=customer) for id, customer in orders.items()])
        session.commit()


def args_in(session: Session) -> list[dict[str, Any]]:
    return list(session.scalars(select(Job.args).order_by(Job.id)))


def test_workers_run_what_it_enqueues(engine: Engine, url: str, registry: Registry) -> None:
    """A thousand jobs, each with its own arguments; twice at once is once, because of the keys."""
    seen: set[tuple[int, str]] = set()

    @task(registry=registry, unique=Unique(by=("number",)))
    def note(number: int, text: str) -> None:
        seen.add((number, text))

    numbers = func.generate_series(1, 1_000, type_=Integer).column_valued("n")
    with Session(engine) as session:
        for _ in range(2):
            session.execute(enqueue_select(note, select(numbers, literal("hello"))))
        session.commit()
    worker = drain(url, registry)

    assert worker.counts["completed"] == 1_000
    assert seen == {(number, "hello") for number in range(1, 1_001)}


def test_it_wakes_a_worker_that_waits(engine: Engine, url: str, registry: Registry) -> None:
    """By the trigger of every INSERT, long before the worker would look by itself."""
    started = threading.Event()

    @task(registry=registry)
    def start(number: int) -> None:
        started.set()

    with working(url, registry, poll=600, lease=60), connect(url) as looking:
        is_open = "SELECT to_timestamp(pg_sequence_last_value('sa_jobqueue.gate_any')) > clock_timestamp()"
        wait_until(lambda: looking.execute(is_open).fetchone() == (True,))
        with Session(engine) as session:
            session.execute(enqueue_select(start, select(literal(1))))
            session.commit()
        assert started.wait(30)


def test_an_orm_query_is_taken_as_it_is(session: Session, registry: Registry, tables: None) -> None:
    """Joins by relationships, aggregates, and mapped expressions."""

    @task(registry=registry)
    def bill(customer_id: int, orders: int) -> None: ...

    @task(registry=registry)
    def double(number: int) -> None: ...

    counted = (
        select(Customer.id, func.count(Order.id)).join(Customer.orders).group_by(Customer.id).order_by(Customer.id)
    )
    session.execute(enqueue_select(bill, counted))
    session.execute(enqueue_select(double, select(Order.doubled).where(Order.customer.has(id=20))))

    assert args_in(session) == [
        {"customer_id": 10, "orders": 2},
        {"customer_id": 20, "orders": 1},
        {"number": 6},
    ]


def test_a_whole_entity_is_its_columns(session: Session, registry: Registry, tables: None) -> None:
    """In their order, without those that are deferred."""

    @task(registry=registry)
    def take(*columns: Any) -> None: ...

    with pytest.raises(
        ValueError, match=r"argument columns: the column total \(NUMERIC\(10, 2\)\) is a Decimal.*Any: annotate it"
    ):
        enqueue_select(take, select(Order))

    @task(registry=registry)
    def meet(id: int) -> None: ...

    session.execute(enqueue_select(meet, select(Customer).order_by(Customer.id)))
    assert args_in(session) == [{"id": 10}, {"id": 20}]


def test_two_columns_of_one_name_are_two_arguments(session: Session, registry: Registry, tables: None) -> None:
    @task(registry=registry)
    def pair(order: int, customer: int) -> None: ...

    session.execute(enqueue_select(pair, select(Order.id, Customer.id).join(Order.customer).where(Order.id == 3)))

    assert args_in(session) == [{"order": 3, "customer": 20}]


def test_a_column_that_an_outer_join_leaves_empty_fails_the_statement(
    session: Session, registry: Registry, tables: None
) -> None:
    """Although it is NOT NULL in its table; leaving such rows out mends it."""

    @task(registry=registry)
    def meet(customer_id: int) -> None: ...

    rows = select(Customer.id).select_from(Order).outerjoin(Order.customer)
    with (
        pytest.raises(DataError, match="argument customer_id: the column id has a row with NULL"),
        session.begin_nested(),
    ):
        session.execute(enqueue_select(meet, rows))

    session.execute(enqueue_select(meet, rows.where(Customer.id.is_not(None))))
    assert len(args_in(session)) == 3


def test_what_each_value_demands_is_the_workers_to_check(engine: Engine, url: str, registry: Registry) -> None:
    """The job fails, with the reason, and its neighbours do not."""

    @task(registry=registry)
    def paint(colour: Literal["red", "blue"]) -> None: ...

    with Session(engine) as session:
        colours = text("SELECT unnest(ARRAY['red', 'green', 'blue']) AS c").columns(literal("x").label("c"))
        session.execute(enqueue_select(paint, select(colours.subquery().c.c)))
        session.commit()
    drain(url, registry)

    with Session(engine) as session:
        found = session.execute(select(Job.status, Job.errors).order_by(Job.id)).all()
    assert [row.status for row in found] == [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.COMPLETED]
    assert "green" in found[1].errors[0]["message"]
