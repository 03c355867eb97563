"""The testing kit beside `drain`: assertions, reasons, fake contexts, effects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import AsyncJobContext, Job, JobContext, Registry, TaskName, enqueue, task
from sa_jobqueue.errors import JobQueueError, JobStopped, OptionError, SessionUnavailable
from sa_jobqueue.statements import cancel_jobs, pause
from sa_jobqueue.testing import (
    FakeAsyncJobContext,
    FakeJobContext,
    JobQueue,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    effects,
    enqueued,
    explain,
    move_clock,
)
from tests.support.joined import Base, Line, Order, joined, settle

KINDS = [("psycopg", False, "outer"), ("psycopg", True, "outer"), ("asyncpg", True, "engine")]
KEY = UUID(int=5)

registry = Registry()


@task(registry=registry, name="shop.send", queue="mail", aliases=["shop.old_send"])
def send(order_id: int, note: str = "", key: UUID | None = None) -> None: ...


@task(registry=registry, name="shop.other")
def other() -> None: ...


@pytest.fixture
def tables(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE joined_orders CASCADE"))


@pytest.fixture(params=KINDS, ids=["sync", "async", "asyncpg"])
async def unit(request: pytest.FixtureRequest, shared_database_url: str, tables: None) -> AsyncIterator[Any]:
    """A test's session, of both kinds."""
    driver, is_async, how = request.param
    async with joined(shared_database_url, driver, is_async=is_async, how=how) as session:
        yield session


# ---- assertions


async def test_a_job_is_found_by_some_of_its_arguments(unit: Any) -> None:
    """Compared with what the handler would get; what is only added is flushed."""
    unit.add_all([enqueue(send, 7, "x", key=KEY), job := enqueue(send, 8), enqueue(other)])

    found = await settle(assert_enqueued(unit, send, order_id=7, key=KEY))
    assert found.args == {"order_id": 7, "note": "x", "key": str(KEY)}
    assert await settle(assert_enqueued(unit, send, order_id=8)) is job
    assert await settle(assert_enqueued(unit, "shop.send", order_id=7)) is found
    assert await settle(enqueued(unit, send)) == [found, job]
    await settle(assert_not_enqueued(unit, send, order_id=9))
    await settle(assert_not_enqueued(unit, send, note="y"))


@dataclass
class Parcel:
    order: Order
    lines: list[Line] = field(default_factory=list)


@task(registry=registry, name="shop.ship")
def ship(order: Order, orders: list[Order | None] = [], parcel: Parcel | None = None) -> None: ...  # noqa: B006


@task(registry=registry, name="shop.pack")
def pack(orders: set[Order]) -> None: ...


async def test_objects_are_compared_by_their_keys(unit: Any) -> None:
    """Wherever they may stand; the test's own object need not be the one that a handler would load."""
    one, other, line = Order(total=1), Order(total=2), Line()
    unit.add_all([one, other, enqueue(ship, one, [one, None, other], Parcel(other)), enqueue(pack, {one, other})])
    await settle(unit.flush())

    await settle(assert_enqueued(unit, ship, order=one))
    await settle(assert_enqueued(unit, ship, order=one.id))
    await settle(assert_enqueued(unit, ship, orders=[one, None, other], parcel=Parcel(other)))
    await settle(assert_enqueued(unit, pack, orders={other, one}))
    for wanted in (
        {"order": other},
        {"order": Order()},
        {"order": line},
        {"orders": [one, other, None]},
        {"parcel": Parcel(one)},
    ):
        await settle(assert_not_enqueued(unit, ship, **wanted))
    await settle(assert_not_enqueued(unit, pack, orders={one}))
    with pytest.raises(AssertionError) as caught:
        await settle(assert_enqueued(unit, ship, order=other, orders=[other]))
    said = str(caught.value)
    assert f"shop.ship(order=Order {other.id}, orders=[Order {other.id}]) is not enqueued." in said
    assert f"order=Order {one.id}, not Order {other.id}, orders=[Order {one.id}, None, Order {other.id}]" in said


async def test_the_difference_is_said(unit: Any) -> None:
    """Of each job of that task; for a reader, not for a program."""
    unit.add_all([first := enqueue(send, 7, "x"), second := enqueue(send.options(queue="slow"), 8)])

    with pytest.raises(AssertionError) as caught:
        await settle(assert_enqueued(unit, send, order_id=8, note="x"))

    assert str(caught.value).splitlines() == [
        "shop.send(order_id=8, note='x') is not enqueued.",
        "2 jobs of this task are:",
        f"  job {first.id}: order_id=7, not 8",
        f"  job {second.id}: no note, instead of 'x'",
    ]


async def test_others_are_named_where_there_is_none_of_the_task(unit: Any) -> None:
    """And those that have ended."""
    with pytest.raises(AssertionError, match=r"No job of any task is\."):
        await settle(assert_enqueued(unit, send))
    unit.add_all([done := enqueue(send, 7), waiting := enqueue(other)])
    await settle(unit.flush())
    await settle(unit.execute(cancel_jobs(Job.id == done.id)))

    with pytest.raises(AssertionError) as caught:
        await settle(assert_enqueued(unit, send, order_id=7))

    assert str(caught.value).splitlines() == [
        "shop.send(order_id=7) is not enqueued.",
        "No job of this task is; enqueued are:",
        f"  job {waiting.id}: shop.other()",
        "Ended, and so no longer enqueued:",
        f"  job {done.id}: shop.send(order_id=7), cancelled",
    ]


async def test_options_that_were_changed_are_compared(unit: Any) -> None:
    """Those of the task itself are not; a delay and a time are compared to the second."""
    hour, moment = timedelta(hours=1), datetime(2040, 1, 1, tzinfo=UTC)
    full = send.options(queue="slow", priority=9, delay=hour, tags=["a"], key="k", units=2, expires_in=7_200)
    unit.add_all([job := enqueue(full, 7), enqueue(send.options(run_at=moment, deadline=moment + hour), 8)])

    assert await settle(assert_enqueued(unit, full, order_id=7)) is job
    await settle(assert_enqueued(unit, send, order_id=7))
    await settle(assert_enqueued(unit, send.options(run_at=moment, deadline=moment + hour)))
    await settle(assert_enqueued(unit, TaskName("shop.send").options(queue="slow")))
    with pytest.raises(AssertionError) as caught:
        await settle(assert_enqueued(unit, send.options(queue="mail", priority=3, delay=60, key="other"), order_id=7))
    said = str(caught.value)
    assert "priority=9, not 3" in said
    assert "(after 1:00:00), not 0:01:00" in said
    assert "key='k', not 'other'" in said


async def test_a_job_that_should_not_be_there_is_named(unit: Any) -> None:
    unit.add(job := enqueue(send, 7))

    with pytest.raises(AssertionError) as caught:
        await settle(assert_not_enqueued(unit, send, order_id=7))

    assert str(caught.value).splitlines() == [
        "1 of shop.send(order_id=7) is enqueued:",
        f"    job {job.id}: shop.send(order_id=7)",
    ]


async def test_an_alias_is_the_task(unit: Any) -> None:
    unit.add(enqueue("shop.old_send", order_id=7))

    await settle(assert_enqueued(unit, send, order_id=7))


# ---- why nothing is run


async def test_each_reason_is_said(unit: Any, engine: Engine) -> None:
    """One for each job."""
    with Session(engine) as elsewhere:
        elsewhere.add_all([enqueue(send, 1)])
        elsewhere.commit()
        locked = elsewhere.scalars(select(Job.id).with_for_update()).one()
        unit.add_all([enqueue(send.options(delay=3_700), 2), enqueue("shop.unknown"), enqueue(other), enqueue(send, 3)])
        await settle(unit.execute(pause("default", reason="deploy")))
        found = await settle(explain(unit, registry=registry))

    assert [(one.task, one.reason) for one in found] == [
        ("shop.send", "is locked by another connection"),
        ("shop.send", "is due in 62 min: move_clock() lets that time pass"),
        ("shop.unknown", "has a task that is not known here: import its module, or give the registry that has it"),
        ("shop.other", "waits for pause default to end: deploy"),
        ("shop.send", "is due: drain() would run it"),
    ]
    assert found[0].job_id == locked
    assert [one.what for one in found[3].reasons] == ["paused", "turn"]
    assert str(found).startswith(f"job {locked} (shop.send) is locked by another connection; job ")


async def test_that_there_is_no_job_is_a_reason(unit: Any) -> None:
    assert str(await settle(explain(unit))) == "no job waits in this session's database; there is none"


# ---- the clock


async def test_the_clock_moves_forward_only(unit: Any) -> None:
    with pytest.raises(OptionError):
        await settle(move_clock(unit, -1))


async def test_only_the_queues_rows_move(unit: Any) -> None:
    """All of their times alike, so that what lies between them stays."""
    unit.add(job := enqueue(send.options(delay=60, expires_in=90), 7))
    await settle(unit.flush())
    before = job.run_at, job.created_at, job.expires_at

    await settle(move_clock(unit, timedelta(hours=2)))

    assert before == tuple(one + timedelta(hours=2) for one in (job.run_at, job.created_at, job.expires_at) if one)


# ---- contexts


def test_a_handler_is_called_with_a_fake_context(session: Session) -> None:
    """It is what a handler gets, with what the test gives it; what the handler says is kept."""

    @task(registry=Registry())
    def count(ctx: JobContext, least: int) -> str:
        ctx.logger.info("from %d", least)
        ctx.progress(0.25, "a quarter")
        assert ctx.session is session
        return f"{ctx.job_id} {ctx.task} {ctx.queue} {ctx.attempt}/{ctx.max_attempts} {ctx.meta} {ctx.tick_at}"

    tick = datetime(2026, 1, 2, tzinfo=UTC)
    ctx = FakeJobContext(session, attempt=3, max_attempts=5, meta={"tags": ["a"]}, tick_at=tick)

    assert count(ctx, 7) == f"1 fake default 3/5 {{'tags': ['a']}} {tick}"
    assert ctx.said == [(0.25, "a quarter")]
    assert ctx.lines == ["from 7"]


async def test_an_async_handler_has_one_of_its_own(async_session: AsyncSession) -> None:
    @task(registry=Registry())
    async def count(ctx: AsyncJobContext) -> int:
        ctx.progress(1)
        return len((await ctx.session.scalars(select(Job.id))).all())

    ctx = FakeAsyncJobContext(async_session)

    assert await count(ctx) == 0
    assert ctx.said == [(1.0, None)]


@pytest.mark.parametrize("made", [FakeJobContext(), FakeAsyncJobContext()])
def test_a_fake_context_can_be_cancelled_and_has_no_session_by_itself(made: Any) -> None:
    assert not made.cancelled
    made.cancel()
    assert made.cancelled
    with pytest.raises(JobStopped):
        made.raise_if_cancelled()
    with pytest.raises(SessionUnavailable, match="this context has no session"):
        _ = made.session


# ---- effects


@pytest.fixture
def writing() -> Registry:
    registry = Registry()

    @task(registry=registry, name="shop.write")
    def write(ctx: JobContext) -> None:
        session = ctx.session
        session.get_one(Order, 1).receipt = "sent"
        session.execute(text("DELETE FROM joined_orders WHERE id = 2"))
        session.add(Order(id=3, total=5))
        session.add(enqueue(send, 3))
        session.commit()

    return registry


async def effects_of(unit: Any, registry: Registry) -> Any:
    if isinstance(unit, AsyncSession):
        async with effects(unit) as rows:
            await drain(unit, registry=registry, queues=["default"])
        return rows
    with effects(unit) as rows:
        drain(unit, registry=registry, queues=["default"])
    return rows


async def test_what_a_job_would_write_is_a_difference_of_rows(unit: Any, writing: Registry) -> None:
    """ORM and SQL, a cascade, and the jobs that it enqueues; afterwards nothing of it is there."""
    unit.add_all([Order(id=1), Order(id=2), enqueue("shop.write")])
    await settle(unit.flush())
    unit.add(Line(id=1, order_id=2))
    await settle(unit.flush())

    rows = await effects_of(unit, writing)

    assert sorted(str(rows.of("joined_orders")[0]).splitlines()) == ["~ joined_orders id=1: receipt None -> 'sent'"]
    assert {(one.table, one.kind, one.key.get("id")) for one in rows if one.table != "sa_jobqueue.job"} == {
        ("joined_orders", "update", 1),
        ("joined_orders", "delete", 2),
        ("joined_orders", "insert", 3),
        ("joined_lines", "delete", 1),
    }
    (job,) = rows.of("sa_jobqueue.job")
    assert (job.kind, job.after["task"], job.after["args"]) == ("insert", "shop.send", {"order_id": 3})
    assert "- joined_orders id=2" in str(rows)
    assert "+ joined_orders id=3: note='', total=5" in str(rows)
    assert list(await settle(unit.scalars(select(Order.id).order_by(Order.id)))) == [1, 2]
    assert (await settle(unit.get_one(Order, 1))).receipt is None
    await settle(assert_enqueued(unit, "shop.write"))


def test_a_table_without_a_key_is_compared_by_its_rows(session: Session) -> None:
    session.execute(text("CREATE TEMP TABLE loose (a int)"))
    session.execute(text("INSERT INTO loose VALUES (1), (1), (2)"))

    with effects(session) as rows:
        session.execute(text("DELETE FROM loose WHERE ctid IN (SELECT ctid FROM loose WHERE a = 1 LIMIT 1)"))
        session.execute(text("INSERT INTO loose VALUES (3)"))

    assert sorted((one.kind, one.before or one.after) for one in rows) == [("delete", {"a": 1}), ("insert", {"a": 3})]


def test_nothing_is_no_effect(session: Session) -> None:
    with effects(session) as rows:
        session.execute(select(1))

    assert (list(rows), str(rows)) == ([], "nothing was written")


def test_an_error_in_the_block_undoes_it_too(session: Session, tables: None) -> None:
    def fail() -> None:
        with effects(session):
            session.add(Order(id=1))
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert session.scalar(select(func.count()).select_from(Order)) == 0


def test_a_commit_in_the_block_is_said(session: Session, tables: None) -> None:
    def commit() -> None:
        with effects(session):
            session.add(Order(id=1))
            session.commit()

    with pytest.raises(JobQueueError, match=r"committed or rolled back within effects\(\)"):
        commit()


# ---- all of it in one object


async def test_the_kit_of_a_session_has_all_of_it(unit: Any) -> None:
    """With the registry that it was given."""
    kit: Any = JobQueue(unit, registry=registry)
    unit.add_all([enqueue(send, 7), enqueue(send.options(delay=60), 8)])

    await settle(kit.assert_enqueued(send, order_id=7))
    await settle(kit.assert_not_enqueued(other))
    assert len(await settle(kit.enqueued(send))) == 2
    assert (await settle(kit.drain())).outcomes == {"completed": 1}
    await settle(kit.move_clock(60))
    assert (await settle(kit.work_one())).args == {"order_id": 8}
    assert len(await settle(kit.explain())) == 0


def test_a_scoped_session_is_the_session_behind_it(engine: Engine) -> None:
    """As Flask-SQLAlchemy has one."""
    scoped = scoped_session(sessionmaker(engine))
    scoped.add(enqueue(send, 7))

    assert_enqueued(scoped, send)
    assert drain(scoped, registry=registry).outcomes == {"completed": 1}
    scoped.remove()
