"""Jobs whose arguments are new objects: what a flush refuses, and what a rollback leaves."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine, event, func, inspect, select
from sqlalchemy.exc import IntegrityError, StatementError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import Fresh, Job, Registry, Unique, enqueue, task
from sa_jobqueue.errors import PayloadError
from tests.support.nightly import nightly
from tests.support.orders import Article, Base, Customer, Document, Invoice, Letter, Order, Report

registry = Registry()
NOW = datetime.now(UTC)


@task(registry=registry, name="ship")
def ship(order: Order, note: str = "") -> None: ...


@task(registry=registry, name="reprice")
def reprice(article: Annotated[Article, Fresh()]) -> None: ...


@task(registry=registry, name="build")
def build(report: Report, order: Order | None = None) -> None: ...


@pytest.fixture
def tables(engine: Engine) -> Engine:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return engine


def args_of(engine: Engine) -> list[Any]:
    with Session(engine) as session:
        return list(session.scalars(select(Job.args).order_by(Job.id)))


def count(engine: Engine, *kinds: type[Any]) -> list[int]:
    with Session(engine) as session:
        return [session.scalar(select(func.count()).select_from(kind)) or 0 for kind in kinds]


# ---- what is refused, before anything is written


def test_an_object_that_nobody_adds(tables: Engine) -> None:
    """It would get no key."""
    job, other = enqueue(ship, Order()), Order()
    with Session(tables) as session:
        session.add_all([other, job])
        with pytest.raises(PayloadError) as caught:
            session.flush()
        assert str(caught.value) == (
            "task 'ship': argument order: the Order is not in the database yet, and it is in no session: add it, "
            "session.add(...), or flush it first"
        )
        assert inspect(other).pending
        assert inspect(job).pending
        assert not session.connection().scalar(select(func.count()).select_from(Order))


def test_an_object_that_is_added_then(tables: Engine) -> None:
    """After such a refusal the session goes on."""
    order = Order()
    job = enqueue(ship, order)
    with Session(tables) as session:
        session.add(job)
        with pytest.raises(PayloadError):
            session.flush()
        session.add(order)
        session.commit()
        assert job.args == {"order": order.id}


def test_a_new_object_of_another_session(tables: Engine) -> None:
    """Which of the two is committed first is not known."""
    order = Order()
    with Session(tables) as session, Session(tables) as other:
        other.add(order)
        session.add(enqueue(ship, order))
        with pytest.raises(PayloadError, match="it is in another session than its job: flush it there, and commit"):
            session.commit()


def test_an_object_of_another_session_that_is_stored(tables: Engine) -> None:
    """Its key is known, also if it became so after the job was made."""
    order = Order()
    job = enqueue(ship, order)
    with Session(tables) as other:
        other.add(order)
        other.commit()
        with Session(tables) as session:
            session.add(job)
            session.commit()
    assert args_of(tables) == [{"order": 1}]


def test_an_object_that_is_deleted_meanwhile(tables: Engine) -> None:
    """Between the making of the job and its flush, and before."""
    with Session(tables) as session:
        article, order = Article(), Order()
        session.add_all([article, order])
        session.flush()
        session.add(enqueue(reprice, article))
        session.delete(article)
        with pytest.raises(PayloadError, match=r"argument article: Article 1 is about to be deleted"):
            session.flush()
        session.rollback()
        session.add(order)
        session.flush()
        session.delete(order)
        session.flush()
        with pytest.raises(PayloadError, match=r"argument order: Order \d was deleted"):
            enqueue(ship, order)


def test_a_unique_job_whose_key_cannot_be_known(tables: Engine) -> None:
    """Its report refers to it, and it is unique by its report."""
    report = Report()
    report.job = enqueue(build.options(unique=Unique()), report)
    with Session(tables) as session:
        session.add(report)
        with pytest.raises(PayloadError, match="the key of this unique job depends on an object"):
            session.flush()
        report.job = enqueue(build.options(unique=Unique("one")), report)
        session.commit()
        assert report.job.args == {"report": report.id}


@pytest.mark.parametrize("read", [False, True])
def test_a_bulk_save_past_the_unit_of_work(tables: Engine, read: bool) -> None:
    """No flush could complete it."""
    job = enqueue(ship, Order())
    assert not read or job.args
    with Session(tables) as session, pytest.raises(StatementError, match="is written by a flush"):
        session.bulk_save_objects([job])


def test_a_copy_that_a_merge_makes(tables: Engine) -> None:
    """The copy does not know the object."""
    with Session(tables) as session:
        session.merge(enqueue(ship, Order()))
        with pytest.raises(StatementError, match="is written by a flush"):
            session.flush()


# ---- what may be so


def test_unique_jobs_by_new_objects(tables: Engine) -> None:
    """The key is made of the order's."""
    first, second = Order(), Order()
    unique = ship.options(unique=Unique(by=("order",)))
    jobs = [enqueue(unique, first, "a"), enqueue(unique, second), enqueue(unique, first, "b")]
    with Session(tables) as session:
        session.add_all([*jobs, first, second])
        session.flush()
        assert sorted(job.is_duplicate for job in jobs) == [False, False, True]
        again = enqueue(unique, first)
        assert again.unique_key == jobs[0].unique_key
        session.commit()


def test_what_was_changed_of_the_job_meanwhile_counts(tables: Engine) -> None:
    """Also its arguments, which may have been read."""
    order = Order()
    job = enqueue(ship, order)
    job.priority = 9
    job.args = {**job.args, "note": "mine"}
    with Session(tables) as session:
        session.add_all([job, order])
        session.commit()
        assert (job.args, job.priority) == ({"order": order.id, "note": "mine"}, 9)


def test_jobs_that_set_other_columns(tables: Engine) -> None:
    """Each keeps what was set of it, in whatever order they stand."""
    orders = [Order() for _ in range(4)]
    jobs = [enqueue(ship, order) for order in orders]
    jobs[1].tick_at = jobs[3].tick_at = NOW
    jobs[2].schedule_id = 7
    with Session(tables) as session:
        session.add_all([*jobs, *orders])
        session.commit()
        assert [job.tick_at for job in jobs] == [None, NOW, None, NOW]
        assert [job.schedule_id for job in jobs] == [None, None, 7, None]
        assert [job.args["order"] for job in jobs] == [order.id for order in orders]


def test_a_job_that_another_object_refers_to(tables: Engine) -> None:
    """A stored report refers to the job of an order that is new: both keys are there after the flush."""
    with Session(tables) as session:
        report, order = Report(), Order()
        session.add(report)
        session.commit()
        report.job = enqueue(ship, order)
        session.add(order)
        session.commit()
        assert (report.job.args, report.job_id) == ({"order": order.id}, report.job.id)


def test_a_longer_cycle(tables: Engine) -> None:
    """The job takes the order, whose report refers to the job."""
    with Session(tables) as session:
        order = Order()
        report = Report(order=order)
        report.job = enqueue(build, report, order)
        session.add(report)
        session.commit()
        assert report.job.args == {"report": report.id, "order": order.id}


def test_a_new_object_of_a_subclass(tables: Engine) -> None:
    """Of a joined table, and of the same."""

    @task(registry=Registry(), name="read")
    def read(document: Document) -> None: ...

    with Session(tables) as session:
        documents = [Invoice(), Letter(), Document()]
        jobs = [enqueue(read, one) for one in documents]
        session.add_all([*jobs, *documents])
        session.commit()
        assert [job.args["document"] for job in jobs] == [one.id for one in documents]


def test_an_autoflush_and_a_savepoint(tables: Engine) -> None:
    """They flush as any other."""
    with Session(tables) as session:
        order = Order()
        job = enqueue(ship, order)
        session.add_all([job, order])
        with session.begin_nested():
            assert session.scalars(select(Job)).one() is job
        session.commit()
        assert job.args == {"order": order.id}


def test_events_of_the_mapper_hear_of_each_insert(tables: Engine) -> None:
    """As of the job that waits for nothing."""
    heard: list[Any] = []

    def note(mapper: Any, connection: Any, job: Job) -> None:
        heard.append(dict(job.args))

    event.listen(Job, "after_insert", note)
    try:
        with Session(tables) as session:
            order = Order()
            session.add_all([enqueue(ship, order), order])
            session.commit()
            assert heard == [{"order": order.id}]
    finally:
        event.remove(Job, "after_insert", note)


def test_a_listener_that_enqueues_for_each_new_object(tables: Engine) -> None:
    """It comes behind ours: then its jobs are completed after the flush, as those to which an object refers."""

    made: list[Job] = []

    def enqueue_for_each(session: Session, *_: Any) -> None:
        for one in session.new:
            if isinstance(one, Order):
                made.append(enqueue(ship, one))
            elif isinstance(one, Article):
                made.extend([enqueue(reprice, one), enqueue(ship, stored)])
        session.add_all(made)

    with Session(tables) as session:
        session.add(stored := Order())
        session.commit()
        event.listen(session, "before_flush", enqueue_for_each)
        session.add_all([order := Order(), article := Article()])
        session.commit()
        arguments = [{"order": order.id}, {"article": {"key": article.id, "version": 1}}, {"order": stored.id}]
        assert [job.args for job in made] == args_of(tables) == arguments
        assert [job.subject_id for job in made] == [str(one.id) for one in (order, article, stored)]

        session.add(again := Order())
        session.flush()
        job = made[-1]
        session.rollback()
        assert set(job.args["order"]) == {"unflushed"}
        event.remove(session, "before_flush", enqueue_for_each)
        del again.id  # as SQLAlchemy leaves it
        vars(job).pop("id", None)
        session.add_all([again, job])
        session.commit()
        assert job.args == {"order": again.id}


@pytest.mark.parametrize(
    "options", ["", *nightly(".options(unique=Unique(key='one'))", ".options(expires_in=60, subject=False)")]
)
def test_the_first_job_of_a_process_may_be_made_within_a_flush(tables: Engine, options: str) -> None:
    """By a listener of the application's, which SQLAlchemy calls one after the other."""
    program = f"""
import sys
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session
from sa_jobqueue import Unique, enqueue, task
from tests.support.orders import Order

@task
def ship(order: Order) -> None: ...

@event.listens_for(Session, "before_flush")
def enqueue_for_each(session, *_):
    session.add_all([enqueue(ship{options}, one) for one in session.new if isinstance(one, Order)])

with Session(create_engine(sys.argv[1])) as session:
    session.add(Order())
    session.commit()
"""
    url = tables.url.render_as_string(hide_password=False)
    ran = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert args_of(tables) == [{"order": 1}]


def test_another_listener_that_refuses_the_flush(tables: Engine) -> None:
    """The next flush writes what it has set aside."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("not now")

    order = Order()
    job = enqueue(ship, order)
    with Session(tables) as session:
        event.listen(session, "before_flush", refuse)
        session.add_all([job, order])
        with pytest.raises(RuntimeError):
            session.flush()
        event.remove(session, "before_flush", refuse)
        session.commit()
        assert job.args == {"order": order.id}


def test_what_was_aside_goes_with_the_session(tables: Engine) -> None:
    """Closed after such a refusal, it may be used again, and does not write that job."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("not now")

    with Session(tables) as session:
        event.listen(session, "before_flush", refuse)
        session.add_all([enqueue(ship, order := Order()), order])
        with pytest.raises(RuntimeError):
            session.flush()
        event.remove(session, "before_flush", refuse)
        session.close()
        session.add(Customer())
        session.commit()
        session.add_all([enqueue(ship, order := Order()), order])
        session.commit()
    assert count(tables, Job, Order, Customer) == [1, 1, 1]


def test_a_time_may_be_an_expression(tables: Engine) -> None:
    """As of any other job; beside jobs with plain ones."""
    with Session(tables) as session:
        orders = [Order() for _ in range(3)]
        jobs = [enqueue(ship, order) for order in orders]
        for hours in (1, 2):
            jobs[hours].run_at = func.now() + timedelta(hours=hours)  # type: ignore[assignment]
        session.add_all([*jobs, *orders])
        session.flush()
        assert [job.run_at - job.created_at for job in jobs] == [timedelta(hours=hours) for hours in range(3)]


async def test_an_async_session_keeps_what_was_loaded(tables: Engine, async_engine: AsyncEngine) -> None:
    """No attribute has to be loaded after the flush."""
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        order = Order(customer=Customer())
        job = enqueue(ship, order)
        session.add_all([job, order])
        await session.commit()
        assert (job.args, job.is_duplicate, job.claims, job.attempt) == ({"order": order.id}, False, 0, 0)
        columns = [one.key for one in inspect(Job).column_attrs if not one.deferred]
        plain = enqueue(ship, order)
        session.add(plain)
        await session.commit()
        unlike = ("id", "created_at", "run_at", "args")
        assert all(getattr(job, name) == getattr(plain, name) for name in columns if name not in unlike)
        assert (job.key, job.unique_key, job.end.result) == (None, None, None)


# ---- what a rollback leaves


def alone(order: Order) -> tuple[Job, list[Any]]:
    """A job that nothing refers to."""
    job = enqueue(ship, order)
    return job, [job, order]


def in_a_cycle(order: Order) -> tuple[Job, list[Any]]:
    """A job that its report refers to, so that it is completed by an UPDATE."""
    job = enqueue(ship, order)
    return job, [Report(order=order, job=job)]


both = pytest.mark.parametrize("make", [alone, in_a_cycle])


@both
def test_a_rollback_makes_the_job_what_it_was(tables: Engine, make: Any) -> None:
    """So it can be added again, with its object; then it gets the new key."""
    order = Order()
    job, objects = make(order)
    with Session(tables) as session:
        session.add_all(objects)
        session.flush()
        before = job.args["order"]
        session.rollback()
        assert inspect(job).transient
        assert job not in session

        del order.id  # as SQLAlchemy leaves it
        vars(job).pop("id", None)
        session.add_all([job, order, Report(job=job)] if make is in_a_cycle else [job, order])
        session.commit()
        assert job.args == {"order": order.id}
        assert order.id != before
    assert count(tables, Job, Order) == [1, 1]


@both
def test_a_rollback_to_a_savepoint(tables: Engine, make: Any) -> None:
    """Undoes what came after it, and no more."""
    kept, undone = Order(), Order()
    first, before = make(kept)
    second, after = make(undone)
    with Session(tables) as session:
        session.add_all(before)
        session.flush()
        savepoint = session.begin_nested()
        session.add_all(after)
        session.flush()
        savepoint.rollback()
        assert (inspect(first).persistent, inspect(second).transient) == (True, True)
        session.commit()
        assert first.args == {"order": kept.id}
    assert count(tables, Job, Order) == [1, 1]


@both
def test_a_rollback_of_what_a_savepoint_has_kept(tables: Engine, make: Any) -> None:
    """The outer transaction takes all with it."""
    job, objects = make(Order())
    with Session(tables) as session:
        with session.begin_nested():
            session.add_all(objects)
        assert inspect(job).persistent
        session.rollback()
        assert inspect(job).transient
        assert "unflushed" in str(job.args)
    assert count(tables, Job, Order) == [0, 0]


def test_a_flush_that_fails(tables: Engine) -> None:
    """In the application's own INSERT: nothing is left aside, and the session goes on."""
    order = Order(customer_id=99)
    job = enqueue(ship, order)
    with Session(tables) as session:
        session.add_all([job, order])
        with pytest.raises(IntegrityError):
            session.flush()
        session.rollback()
        session.add(Order())
        session.commit()
        assert count(tables, Job, Order) == [0, 1]

        order.customer_id = None
        session.add_all([job, order])
        session.commit()
        assert job.args == {"order": order.id}


@pytest.mark.parametrize("nested", [False, True])
def test_an_insert_of_the_job_that_fails(tables: Engine, nested: bool) -> None:
    """The order is not kept without it."""
    raising = ship.options(unique=Unique("one", on_clash="raise"))
    with Session(tables) as session:
        session.add(first := Order())
        session.add(enqueue(raising, first))
        session.commit()
        order = Order()
        job = enqueue(raising, order)

        def add_both() -> None:
            session.add_all([job, order])
            session.flush()

        if nested:
            with pytest.raises(IntegrityError), session.begin_nested():
                add_both()
        else:
            with pytest.raises(IntegrityError):
                add_both()
            session.rollback()
        assert inspect(job).transient
        session.add(Customer())
        session.commit()
    assert count(tables, Job, Order, Customer) == [1, 1, 1]


def test_after_the_commit_nothing_holds_the_objects(tables: Engine) -> None:
    """Neither the session nor the job."""
    with Session(tables) as session:
        order = Order()
        job = enqueue(ship, order)
        session.add_all([job, order])
        session.commit()
        seen = weakref.ref(order)
        del order
        session.add_all([enqueue(ship, other := Order()), other])
        session.commit()
        gc.collect()
        assert seen() is None
        assert job.args == {"order": 1}
