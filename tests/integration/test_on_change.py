"""`on_change` by the flush of a Session: which changes enqueue a job, and when the job is lost with them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, ForeignKey, event, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, column_property, mapped_column, relationship

from sa_jobqueue import (
    AsyncJobContext,
    BatchContext,
    Batching,
    Job,
    JobContext,
    JobStatus,
    Registry,
    Unique,
    on_change,
    task,
)
from sa_jobqueue.errors import TaskError
from tests.support.working import drain

registry = Registry()


class Base(DeclarativeBase): ...


class Invoice(Base):
    """Rows of a subclass are in a table of their own, too."""

    __tablename__ = "changed_invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    status: Mapped[str | None]
    price: Mapped[int] = mapped_column(server_default="1")
    twice: Mapped[int] = column_property(price * 2)
    lines: Mapped[list[Line]] = relationship()
    __mapper_args__: ClassVar = {"polymorphic_on": "kind", "polymorphic_identity": "plain"}


class Reminder(Invoice):
    __tablename__ = "changed_reminder"
    id: Mapped[int] = mapped_column(ForeignKey(Invoice.id), primary_key=True)
    level: Mapped[int] = mapped_column(default=0)
    __mapper_args__: ClassVar = {"polymorphic_identity": "reminder"}


class Line(Base):
    """A composite key."""

    __tablename__ = "changed_line"
    place: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    invoice_id: Mapped[int | None] = mapped_column(ForeignKey(Invoice.id))
    amount: Mapped[int]


class Counter(Base):
    """Its handlers change it again."""

    __tablename__ = "changed_counter"
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int | None]
    once: Mapped[str | None]
    many: Mapped[int | None]


@on_change(Invoice.status, to="paid")
@task(registry=registry, name="receipt", queue="mail", priority=7)
def receipt(ctx: JobContext, invoice: Invoice) -> None: ...


@on_change(Invoice.status, from_="draft", to="sent")
@on_change(Invoice.status, from_="sent", to=None)
@task(registry=registry, name="moved")
def moved(invoice: Invoice) -> None: ...


@on_change(Invoice.price, insert=False)
@task(registry=registry, name="repriced", unique=Unique(scope="queued"))
def repriced(invoice: Invoice, note: str = "") -> None: ...


@on_change(Reminder.level)
@task(registry=registry, name="raised")
async def raised(ctx: AsyncJobContext, reminder: Reminder) -> None: ...


@on_change(Line.amount)
@task(registry=registry, name="summed")
def summed(line: Line) -> None: ...


@on_change(Counter.value)
@task(registry=registry, name="count", max_attempts=1)
def count(ctx: JobContext, counter: Counter) -> None:
    if (counter.value or 0) % 2:
        counter.value = (counter.value or 0) + 1
        return
    with Session(ctx.session.connection().engine) as session:  # its own
        session.get_one(Counter, counter.id).value = (counter.value or 0) + 1
        session.commit()


@on_change(Counter.once, to="begun")
@task(registry=registry, name="finish")
async def finish(ctx: AsyncJobContext, counter: Counter) -> None:
    counter.once = "ended"


@on_change(Counter.many)
@task(registry=registry, name="batch", max_attempts=1, batch=Batching(10))
def batch(ctx: BatchContext, counters: list[Counter]) -> None:
    for counter in counters:
        if counter.id == 1:
            counter.many = (counter.many or 0) + 1


@pytest.fixture
def tables(engine: Engine) -> Engine:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return engine


def jobs(engine: Engine) -> list[tuple[str, Any]]:
    """The task and the argument of each job."""
    with Session(engine) as session:
        return [(job.task, *job.args.values()) for job in session.scalars(select(Job).order_by(Job.id))]


def test_a_change_to_the_value_enqueues_a_job_with_the_options_of_the_task_in_the_same_transaction(
    tables: Engine,
) -> None:
    """A new row counts as changed to the value, and so does each later change; setting the value again does not."""
    with Session(tables) as session:
        invoice = Invoice(status="paid")
        session.add(invoice)
        session.flush()
        assert jobs(tables) == []
        invoice.status = "open"
        session.flush()
        invoice.status = "paid"
        session.commit()
        made = session.scalars(select(Job).order_by(Job.id)).all()
        assert [(job.task, job.args, job.queue, job.priority) for job in made] == 2 * [
            ("receipt", {"invoice": 1}, "mail", 7)
        ]
        assert made[0].subject is not None
        assert made[0].meta == {"change_depth": 1}
        invoice.status = "paid"  # the session does not know the old value
        session.commit()
    assert len(jobs(tables)) == 2


def test_the_old_value_must_be_that_of_from(tables: Engine) -> None:
    """Also where the session has not loaded it. None is NULL, which is what a row has before its INSERT."""
    with Session(tables) as session:
        first, second = Invoice(status="draft"), Invoice(status="sent")
        session.add_all([first, second])
        session.commit()
        assert jobs(tables) == []
        first.status = "sent"
        session.commit()
        second.status = "sent"
        session.commit()
        assert jobs(tables) == [("moved", first.id)]
        first.status = None
        session.commit()
    assert jobs(tables) == 2 * [("moved", 1)]


def test_any_change_of_the_column_counts_without_a_value(tables: Engine) -> None:
    """The task is unique, so the second change finds the job of the first; and `insert=False` leaves new rows out."""
    with Session(tables) as session:
        invoice = Invoice(price=5)
        session.add(invoice)
        session.commit()
        invoice.price = 6
        session.flush()
        invoice.price = 7
        session.commit()
        statuses = session.scalars(select(Job.status).where(Job.task == "repriced").order_by(Job.id)).all()
    assert statuses == [JobStatus.QUEUED, JobStatus.CANCELLED]


def test_what_is_rolled_back_enqueues_nothing(tables: Engine) -> None:
    """A rollback to a savepoint also undoes the jobs of its changes."""
    with Session(tables) as session:
        session.add(Invoice(status="paid"))
        session.flush()
        session.rollback()
        kept = Invoice(status="paid")
        session.add(kept)
        session.flush()
        savepoint = session.begin_nested()
        session.add(Invoice(status="paid"))
        session.flush()
        savepoint.rollback()
        session.commit()
        assert jobs(tables) == [("receipt", kept.id)]


def test_subclasses_and_composite_keys(tables: Engine) -> None:
    """A rule of a class holds for rows of its subclasses; a rule of a subclass does not hold for the class."""
    with Session(tables) as session:
        session.add(Reminder(status="paid", level=1))
        session.add(Line(place="a", number=2, amount=3))
        session.commit()
    assert sorted(jobs(tables)) == [("raised", 1), ("receipt", 1), ("summed", ["a", 2])]


def test_a_change_by_a_listener_of_the_application_counts(tables: Engine) -> None:
    """The rule is applied after the flush has written all rows."""

    def pay(session: Session, *_: object) -> None:
        for instance in session.new:
            if isinstance(instance, Invoice):
                instance.status = "paid"

    with Session(tables) as session:
        event.listen(session, "before_flush", pay)
        session.add(Invoice(status="open"))
        session.commit()
    assert jobs(tables) == [("receipt", 1)]


def test_a_listener_that_sets_the_value_again_makes_no_change(tables: Engine) -> None:
    """Also if the session had not loaded the value: the flush reads the old value after the listeners have run."""

    def send(session: Session, *_: object) -> None:
        for instance in session.dirty:
            if isinstance(instance, Invoice):
                instance.status = "sent"

    with Session(tables) as session:
        invoice = Invoice(status="sent")
        session.add(invoice)
        session.commit()
        event.listen(session, "before_flush", send)
        invoice.kind = "plain"  # nothing is loaded
        session.commit()
        assert jobs(tables) == []
        session.execute(update(Invoice).values(status="draft"))
        session.commit()
        invoice.kind = "plain"
        session.commit()
    assert jobs(tables) == [("moved", 1)]


def test_a_row_whose_key_changes_with_the_column_is_the_argument_by_its_new_key(tables: Engine) -> None:
    """The handler finds it."""
    with Session(tables) as session:
        line = Line(place="a", number=1, amount=1)
        session.add(line)
        session.commit()
        line.number, line.amount = 2, 2
        session.commit()
    assert jobs(tables) == [("summed", ["a", 1]), ("summed", ["a", 2])]


def test_statements_that_change_rows_in_bulk_are_not_seen_by_a_session_rule(tables: Engine) -> None:
    """They are for `via="trigger"`."""
    with Session(tables) as session:
        session.add(Invoice(status="open"))
        session.commit()
        session.execute(update(Invoice).values(status="paid"))
        session.execute(text("UPDATE changed_invoice SET status = 'draft'"))
        session.execute(update(Invoice).values(status="paid"))
        session.commit()
    assert jobs(tables) == []


async def test_an_async_session_enqueues_too(tables: Engine, async_engine: AsyncEngine) -> None:
    """Also for an attribute that it has not loaded when it is set."""
    async with AsyncSession(async_engine) as session:
        invoice = Invoice(status="open")
        session.add(invoice)
        await session.commit()
        invoice.status = "paid"
        await session.commit()
    assert jobs(tables) == [("receipt", 1)]


def test_handlers_that_change_the_column_again_are_stopped_after_ten_jobs_in_a_row(tables: Engine, url: str) -> None:
    """The handler of the tenth fails, with its change. They change it by `ctx.session` and by sessions of their own in turn."""
    with Session(tables) as session:
        session.add(Counter(value=0, once="begun"))
        session.commit()
    drain(url, registry)
    with Session(tables) as session:
        counted = session.scalars(select(Job).where(Job.task == "count").order_by(Job.id)).all()
        assert [job.meta["change_depth"] for job in counted] == list(range(1, 11))
        assert {job.status for job in counted[:-1]} == {JobStatus.COMPLETED}
        assert counted[-1].status is JobStatus.FAILED
        assert "task 'count': on_change(Counter.value): 10 jobs in a row were enqueued by changes" in str(
            counted[-1].errors
        )
        assert session.execute(select(Counter.value, Counter.once)).one() == (9, "ended")
        assert session.scalar(select(func.count()).where(Job.task == "finish")) == 1


def test_a_batch_is_as_far_in_a_row_as_its_furthest_job(tables: Engine) -> None:
    """A batch handler takes the rows of its jobs."""
    with Session(tables) as session:
        session.add(Counter(many=1))
        session.commit()
        session.execute(update(Job).values(meta={"change_depth": 10}))
        session.add_all([Counter(many=1), Counter(many=1)])
        session.execute(update(Job).where(Job.task != "batch").values(queue="other"))
        session.commit()
    drain(tables, registry)
    with Session(tables) as session:
        statuses = session.scalars(select(Job.status).where(Job.task == "batch").order_by(Job.id)).all()
    assert statuses == [JobStatus.FAILED, JobStatus.COMPLETED, JobStatus.COMPLETED]


def test_what_is_no_column_or_takes_no_row_is_refused_by_name() -> None:
    """At the declaration."""

    def refused(declare: Any, handler: Any = None) -> str:
        with pytest.raises(TaskError) as caught:
            declare()(task(registry=Registry(), name="x")(handler or _takes_invoice))
        return str(caught.value)

    changed: Any = on_change
    for other, named in ((Invoice.lines, "Invoice.lines"), (Invoice.twice, "Invoice.twice"), ("status", "'status'")):
        expected = f"on_change() takes the attribute of a mapped column, as Order.status, not {named}"
        assert refused(lambda other=other: changed(other)) == expected  # type: ignore[misc]
    assert 'via must be "session" or "trigger"' in refused(lambda: changed(Invoice.status, via="flush"))
    assert "insert must be True or False" in refused(lambda: changed(Invoice.status, insert=1))
    assert "to and from_ are both 'paid'" in refused(lambda: changed(Invoice.status, to="paid", from_="paid"))

    several = "is no value of Invoice.status (str): for several values write several rules, one above the other"
    assert refused(lambda: changed(Invoice.status, to=["paid", "sent"])) == f"on_change: to=['paid', 'sent'] {several}"
    assert "from_=7 is no value of Invoice.status" in refused(lambda: changed(Invoice.status, from_=7))
    assert "is no value of Invoice.price (int)" in refused(lambda: changed(Invoice.price, to=len))

    status = lambda: on_change(Invoice.status)  # noqa: E731
    assert refused(status, _takes_nothing) == (
        "task 'x': on_change(Invoice.status): the first argument is an object of Invoice, and it takes no argument: annotate the handler's "
        "first parameter with Invoice"
    )
    assert "'id' cannot take it" in refused(status, _takes_key)
    assert "'line' cannot take it" in refused(status, _takes_line)
    assert "give note a default" in refused(status, _takes_more)
    with pytest.raises(TaskError, match="stands above @task"):
        status()(_takes_key)  # type: ignore[type-var]


def _takes_invoice(invoice: Invoice) -> None: ...
def _takes_nothing() -> None: ...
def _takes_key(id: int) -> None: ...
def _takes_line(line: Line) -> None: ...
def _takes_more(invoice: Invoice, note: str) -> None: ...
