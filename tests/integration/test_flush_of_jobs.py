"""Jobs that a flush inserts without the unit of work: everything else is as if it had been part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, inspect, select
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Registry, Unique, enqueue, task
from tests.support.orders import Base, Order, Report

registry = Registry()
Make = Callable[[], list[Job]]


@task(registry=registry, name="send")
def send(number: int) -> None: ...


@task(registry=registry, name="ship")
def ship(order: Order) -> None: ...


unique = send.options(unique=Unique("one", on_clash="raise"))
options = send.options(delay=60, key="k", tags=["t"], units=2, expires_in=90, deadline=datetime(2090, 1, 1, tzinfo=UTC))


@pytest.fixture
def tables(engine: Engine) -> Engine:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return engine


@contextmanager
def sent(engine: Engine) -> Iterator[list[str]]:
    """The INSERTs that are sent meanwhile, without their values."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT"):
            statements.append(statement.partition(" (")[0])

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)


def shown(job: Job) -> dict[str, Any]:
    """All that the job and its state hold, with times as distances."""
    state, known = inspect(job), dict(vars(job))
    found = {name: known[name] - job.created_at for name in known if isinstance(known[name], datetime)}
    flags = state.persistent, state.modified, state.expired, state.expired_attributes, state.committed_state, state.key
    return {**known, **found, "deadline_at": job.deadline_at, "_sa_instance_state": flags[:-1], "id": flags[-1] is None}


@pytest.mark.parametrize("size", [1, 3])
def test_it_holds_what_the_unit_of_work_would_leave(engine: Engine, size: int) -> None:
    """The same attributes with the same values, and nothing to be loaded."""
    found: list[Any] = []
    for heard in (False, True):
        with Session(engine) as session:
            if heard:
                event.listen(session, "before_flush", lambda *_: None)
            jobs = [enqueue(options, 7), enqueue(send, 8), enqueue(send.options(unique=Unique("a")), 9)][:size]
            session.add_all(jobs)
            session.flush()
            assert (list(session.new), [session.get(Job, job.id) for job in jobs]) == ([], jobs)
            found.append([shown(job) for job in jobs])
            assert [job.args["number"] for job in jobs] == [7, 8, 9][:size]
            session.rollback()
            assert [inspect(job).transient for job in jobs] == [True] * size
    assert found[0] == found[1]


def test_a_savepoint_takes_back_its_own(engine: Engine) -> None:
    """The job is transient again, and can be added again."""
    with Session(engine) as session:
        session.add(first := enqueue(send, 1))
        savepoint = session.begin_nested()
        session.add(second := enqueue(send, 2))
        session.flush()
        savepoint.rollback()
        assert (inspect(first).persistent, inspect(second).transient) == (True, True)
        session.add(second)
        session.commit()
        assert [job.args for job in session.scalars(select(Job).order_by(Job.id))] == [{"number": 1}, {"number": 2}]


@pytest.mark.parametrize("nested", [False, True])
def test_an_insert_that_fails(engine: Engine, nested: bool) -> None:
    """The error is the driver's, as SQLAlchemy raises it, and the session asks for a rollback, as after any flush that fails."""
    with Session(engine) as session:
        session.add(enqueue(unique, 1))
        session.flush()
        savepoint = session.begin_nested() if nested else None
        session.add(job := enqueue(unique, 2))
        with pytest.raises(DBAPIError) as caught:
            session.flush()
        assert caught.value.statement is not None
        assert inspect(job).transient
        with pytest.raises(PendingRollbackError, match="due to a previous exception during flush"):
            session.execute(select(1))
        (savepoint or session).rollback()
        session.add(enqueue(send, 3))
        session.commit()
        kept = [1, 3] if nested else [3]
        assert [job.args["number"] for job in session.scalars(select(Job).order_by(Job.id))] == kept


@pytest.mark.parametrize("name", ["before_flush", "after_flush", "after_flush_postexec"])
def test_the_applications_listeners_to_flushes_see_it(engine: Engine, name: str) -> None:
    """As new before the flush, and in it."""
    seen: list[list[object]] = []
    with Session(engine) as session:
        event.listen(session, name, lambda session, *_: seen.append([*session.new]))
        session.add(job := enqueue(send, 1))
        session.flush()
        assert seen == [[] if name == "after_flush_postexec" else [job]]


@pytest.mark.parametrize("name", ["before_insert", "after_insert"])
def test_the_applications_listeners_to_the_mapper_see_it(engine: Engine, name: str) -> None:
    """And may change it before the INSERT."""

    def change(_mapper: object, _connection: object, job: Job) -> None:
        if name == "before_insert":
            job.priority = 9
        found.append(job in Session.object_session(job).new)  # type: ignore[union-attr]

    found: list[bool] = []
    event.listen(Job, name, change)
    try:
        with Session(engine) as session:
            session.add(job := enqueue(send, 1))
            session.commit()
            assert (found, job.priority) == ([True], 9 if name == "before_insert" else 4)
    finally:
        event.remove(Job, name, change)


def test_many_are_one_statement_beside_rows(tables: Engine) -> None:
    """In the order in which they were added. A unique job locks its key: that stays where the unit of work has it among the rows."""
    with Session(tables) as session, sent(tables) as statements:
        jobs = [enqueue(send, number) for number in range(20)]
        late = [enqueue(ship, order := Order()), enqueue(ship, order)]
        session.add_all([order, *jobs[:10], enqueue(unique, 20), *jobs[10:], *late])
        session.flush()
        assert sorted(statements) == ["INSERT INTO an_order", *["INSERT INTO sa_jobqueue.job"] * 3]
        assert sorted(jobs, key=lambda job: job.id) == jobs
        assert [job.args for job in late] == [{"order": order.id}] * 2


def test_a_job_that_an_object_refers_to_stays_in_the_flush(tables: Engine) -> None:
    """The object gets its key."""
    with Session(tables) as session:
        session.add_all([report := Report(job=enqueue(send, 1)), enqueue(send, 2)])
        session.commit()
        assert report.job_id == report.job.id  # type: ignore[union-attr]


def test_a_session_that_chooses_the_connection_by_the_object_does_so(engine: Engine) -> None:
    """As one that spreads the objects of a class over several databases."""
    with Session(engine) as session:
        asked: list[object] = []

        def choose(mapper: Any = None, instance: object = None, **options: Any) -> Any:
            asked.append(instance)
            return session.connection()

        session.connection_callable = choose
        session.add(job := enqueue(send, 1))
        session.flush()
        assert asked == [job]


def test_what_only_the_unit_of_work_can_write(engine: Engine) -> None:
    """An expression of SQL, arguments that were read, and a job that is not made by `enqueue`."""
    with Session(engine) as session:
        session.add_all(
            [timed := enqueue(send, 1), read := enqueue(send, 2), bare := Job(task="send", args={"number": 3})]
        )
        timed.run_at = func.now() + timedelta(hours=1)  # type: ignore[assignment]
        read.args["number"] += 2
        session.commit()
        assert timed.run_at - timed.created_at == timedelta(hours=1)
        assert (read.args, bare.queue, bare.run_at) == ({"number": 4}, "default", bare.created_at)
