"""`drain` and `work_one`: jobs run where the test is, in its own session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, selectinload, undefer

from sa_jobqueue import (
    AsyncJobContext,
    Breaker,
    Cancel,
    Discard,
    Job,
    JobContext,
    JobStatus,
    Limits,
    Middleware,
    Rate,
    Registry,
    Retry,
    Schedule,
    Snooze,
    Unique,
    Workflow,
    add_middleware,
    enqueue,
    task,
)
from sa_jobqueue.errors import HandlerTimeout, JobQueueError, PayloadError, SessionUnavailable, TaskError
from sa_jobqueue.models import LimitRow
from sa_jobqueue.statements import job_logs, open_breaker, pause, set_limit
from sa_jobqueue.testing import Drained, Ran, drain, explain, move_clock, work_one
from tests.support.joined import KINDS, NAMES, Base, Line, Order, joined, settle

pytestmark = pytest.mark.usefixtures("tables")
HOUR = timedelta(hours=1)


@pytest.fixture
def tables(engine: Engine) -> None:
    """The application's tables, empty."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE joined_orders CASCADE"))


#: Sessions and AsyncSessions are driven by different code; how they are bound, and which driver they have, matters little.
USUAL = ("psycopg-sync-outer", "asyncpg-async-outer")


@pytest.fixture(
    params=[
        pytest.param(kind, id=name, marks=[] if name in USUAL else pytest.mark.nightly)
        for kind, name in zip(KINDS, NAMES, strict=True)
    ]
)
async def unit(request: pytest.FixtureRequest, shared_database_url: str) -> AsyncIterator[Any]:
    """A test's session, of each kind."""
    driver, is_async, how = request.param
    async with joined(shared_database_url, driver, is_async=is_async, how=how) as session:
        yield session


@pytest.fixture
def handlers(registry: Registry) -> Handlers:
    return Handlers(registry)


class Handlers:
    """A handler of each kind, that do the same."""

    def __init__(self, registry: Registry) -> None:
        @task(registry=registry, queue="mail")
        def send(ctx: JobContext, order_id: int) -> None:
            ctx.session.get_one(Order, order_id).receipt = f"sent by attempt {ctx.attempt}"

        @task(registry=registry, queue="mail")
        async def send_async(ctx: AsyncJobContext, order_id: int) -> None:
            await ctx.session.execute(text("SELECT 1"))
            order = await ctx.session.get_one(Order, order_id)
            order.receipt = f"sent by attempt {ctx.attempt}"

        self.both = [send, send_async]
        self.send, self.send_async = send, send_async


async def add(unit: Any, *rows: Any) -> None:
    unit.add_all(rows)
    await settle(unit.flush())


@pytest.mark.parametrize("unit", KINDS, ids=NAMES, indirect=True)
async def test_jobs_run_in_the_sessions_transaction(
    unit: Any, handlers: Handlers, registry: Registry, engine: Engine
) -> None:
    """Both kinds of handlers, in each kind of session: the test's objects show what they wrote, and a rollback takes all of it."""
    orders = [Order(id=1), Order(id=2)]
    await add(unit, *orders)
    await add(unit, *(enqueue(one, order.id) for one, order in zip(handlers.both, orders, strict=True)))

    drained = await settle(drain(unit, registry=registry))

    assert [order.receipt for order in orders] == ["sent by attempt 1"] * 2
    assert drained.outcomes == {"completed": 2}
    assert [(one.task, one.args, one.queue) for one in drained] == [
        (one.name, {"order_id": number}, "mail") for number, one in enumerate(handlers.both, 1)
    ]
    await settle(unit.rollback())
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Job)) == 0
        assert connection.scalar(select(func.count()).select_from(Order)) == 0


async def test_what_was_loaded_beside_an_object_is_loaded_again(unit: Any, registry: Registry) -> None:
    """Relationships and deferred columns, too: under an AsyncSession they could not be loaded when they are looked at."""

    @task(registry=registry)
    def split(ctx: JobContext, order: Order) -> None:
        order.note = "in two"
        ctx.session.add_all([Line(order_id=order.id), Line(order_id=order.id)])

    await add(unit, Order(id=1))
    unit.expunge_all()
    query = select(Order).options(selectinload(Order.lines), undefer(Order.note))
    order = (await settle(unit.scalars(query))).one()
    assert (order.lines, order.note) == ([], "")
    await add(unit, enqueue(split, order))

    await settle(drain(unit, registry=registry))

    assert [line.order_id for line in order.lines] == [1, 1]
    assert order.note == "in two"


async def test_a_commit_of_the_tests_own_keeps_it(unit: Any, handlers: Handlers, registry: Registry) -> None:
    """Its transaction is as it was before."""
    order = Order(id=1)
    await add(unit, order, enqueue(handlers.send, 1))
    await settle(unit.commit())

    await settle(drain(unit, registry=registry))
    await settle(unit.commit())

    assert (await settle(unit.get_one(Order, 1))).receipt == "sent by attempt 1"
    assert set(await settle(unit.scalars(select(Job.status)))) == {JobStatus.COMPLETED}


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
async def test_what_a_failed_handler_wrote_is_undone(unit: Any, registry: Registry, is_async: bool) -> None:
    """To the savepoint where its transaction would have begun, also what its own commit() seemed to keep."""

    @task(registry=registry)
    def fail(ctx: JobContext) -> None:
        ctx.session.add(Order(id=2))
        ctx.session.commit()
        ctx.session.add(Order(id=3))
        ctx.session.flush()
        raise ValueError("no")

    @task(registry=registry)
    async def fail_async(ctx: AsyncJobContext) -> None:
        ctx.session.add(Order(id=2))
        await ctx.session.commit()
        ctx.session.add(Order(id=3))
        await ctx.session.flush()
        raise ValueError("no")

    await add(unit, Order(id=1), job := enqueue(fail_async if is_async else fail))

    drained = await settle(drain(unit, registry=registry, raise_errors=False))

    assert drained.outcomes == {"retried": 1}
    assert [str(error) for error in drained.errors] == ["no"]
    assert list(await settle(unit.scalars(select(Order.id)))) == [1]
    assert (job.status, job.attempt, job.errors[0]["message"]) == (JobStatus.QUEUED, 1, "no")
    assert "is due in" in repr(await settle(drain(unit, registry=registry)))


@pytest.mark.parametrize("how", ["gathered", "left"])
async def test_what_a_task_that_was_left_behind_writes_is_undone(
    async_session: AsyncSession, registry: Registry, how: str
) -> None:
    """As in production: the second of several at once is refused, and what the first one still does is not kept."""
    write = text("INSERT INTO joined_orders (total, note) VALUES (1, '')")
    left_behind: list[asyncio.Task[Any]] = []

    @task(registry=registry, name="shop.write")
    async def handler(ctx: AsyncJobContext) -> None:
        left_behind.append(asyncio.create_task(ctx.session.execute(write)))
        await asyncio.sleep(0)
        if how == "gathered":
            await ctx.session.execute(write)
        raise ValueError

    async_session.add(enqueue(handler))
    drained = await drain(async_session, registry=registry, raise_errors=False)
    assert [type(error) for error in drained.errors] == [SessionUnavailable if how == "gathered" else ValueError]
    with suppress(SQLAlchemyError, SessionUnavailable):
        await left_behind[0]
    assert await async_session.scalar(text("SELECT count(*) FROM joined_orders")) == 0
    assert not (await async_session.connection()).in_nested_transaction()


async def test_a_handlers_error_is_raised(unit: Any, registry: Registry) -> None:
    """With a note that says whose it is, when the job is written as failed."""

    @task(registry=registry, name="fail", max_attempts=1)
    def fail(order_id: int) -> None:
        raise ZeroDivisionError("of the handler")

    await add(unit, job := enqueue(fail, 7))

    with pytest.raises(ZeroDivisionError, match="of the handler") as caught:
        await settle(drain(unit, registry=registry))

    assert f"From job {job.id} fail(order_id=7): failed" in caught.value.__notes__[0]
    assert job.status is JobStatus.FAILED


async def test_an_error_of_the_database_leaves_the_session_as_it_was(unit: Any, registry: Registry) -> None:
    """A flush that fails at the end of the handler fails the attempt, and nothing of the test's."""

    @task(registry=registry)
    def twice(ctx: JobContext) -> None:
        ctx.session.add(Order(id=1))

    await add(unit, Order(id=1), enqueue(twice))

    with pytest.raises(IntegrityError):
        await settle(drain(unit, registry=registry))

    assert list(await settle(unit.scalars(select(Order.id)))) == [1]


OUTCOMES: list[tuple[Any, str, JobStatus]] = [
    (Retry(60), "retried", JobStatus.QUEUED),
    (Snooze(60), "snoozed", JobStatus.QUEUED),
    (Cancel("why"), "cancelled", JobStatus.CANCELLED),
    (Discard("why"), "failed", JobStatus.FAILED),
]


@pytest.mark.parametrize(("outcome", "word", "status"), OUTCOMES, ids=[one[1] for one in OUTCOMES])
@pytest.mark.parametrize("raised", [False, True], ids=["returned", "raised"])
async def test_outcomes_are_those_of_a_worker(
    unit: Any, registry: Registry, outcome: Any, word: str, status: JobStatus, raised: bool
) -> None:
    """A returned one keeps what the handler wrote, a raised one does not; none is an error of the test."""

    @task(registry=registry)
    def decide(ctx: JobContext) -> object:
        ctx.session.add(Order(id=1))
        if raised:
            raise outcome
        return outcome

    await add(unit, job := enqueue(decide))

    ran = await settle(work_one(unit, registry=registry))

    assert (ran.outcome, job.status) == (word, status)
    assert len((await settle(unit.scalars(select(Order.id)))).all()) == (not raised)


async def test_a_commit_and_a_rollback_of_the_handler_are_those_of_a_savepoint(unit: Any, registry: Registry) -> None:
    """What it committed is kept, and what it rolled back is not."""

    @task(registry=registry)
    def split(ctx: JobContext) -> None:
        ctx.session.add(Order(id=1))
        ctx.session.commit()
        ctx.session.add(Order(id=2))
        ctx.session.rollback()
        with ctx.session.begin_nested():
            ctx.session.add(Order(id=3))

    await add(unit, enqueue(split))
    await settle(drain(unit, registry=registry))

    assert list(await settle(unit.scalars(select(Order.id).order_by(Order.id)))) == [1, 3]


async def test_jobs_that_jobs_enqueue_run_too(unit: Any, handlers: Handlers, registry: Registry) -> None:
    """Until none is due, the first by priority."""

    @task(registry=registry)
    def fan_out(ctx: JobContext) -> None:
        ctx.session.add_all(enqueue(handlers.send.options(queue="q", priority=n), n) for n in (1, 2, 3))

    await add(unit, *(Order(id=n) for n in (1, 2, 3)), enqueue(fan_out))

    drained = await settle(drain(unit, registry=registry))

    assert [one.args.get("order_id") for one in drained] == [None, 3, 2, 1]


async def test_a_job_that_enqueues_itself_is_stopped(unit: Any, registry: Registry) -> None:
    """With a message, and not by a test that hangs."""

    @task(registry=registry, name="again")
    def again(ctx: JobContext) -> None:
        ctx.session.add(enqueue(again))

    await add(unit, enqueue(again))

    with pytest.raises(JobQueueError, match=r"5 jobs have run, and others are due; the last was job \d+ again\(\)"):
        await settle(drain(unit, registry=registry, most=5))


async def test_other_queues_may_be_left(unit: Any, registry: Registry, handlers: Handlers) -> None:
    """And why is said."""
    await add(unit, Order(id=1), enqueue(handlers.send, 1))

    drained = await settle(drain(unit, registry=registry, queues=["slow", "fast"]))

    assert len(drained) == 0
    assert "is in the queue 'mail', and only fast, slow is looked at" in drained.left


async def test_a_task_that_is_not_known_is_said(unit: Any, registry: Registry) -> None:
    """It is mostly an import that is missing."""
    await add(unit, job := enqueue("elsewhere.send", order_id=1))

    with pytest.raises(TaskError, match=rf"job {job.id}: no task is called 'elsewhere.send' here: import its module"):
        await settle(drain(unit, registry=registry))

    assert (job.status, job.attempt) == (JobStatus.QUEUED, 0)


async def test_arguments_that_do_not_fit_are_raised(unit: Any, registry: Registry, handlers: Handlers) -> None:
    """As any error of the handler; the job is failed."""
    await add(unit, job := enqueue(handlers.send.name, order="x"))

    with pytest.raises(PayloadError, match="order_id is missing"):
        await settle(drain(unit, registry=registry))

    assert job.status is JobStatus.FAILED


async def test_one_job_may_be_chosen(unit: Any, registry: Registry, handlers: Handlers) -> None:
    """By the job, or its id; else it is the one that is due first."""
    await add(unit, *(Order(id=n) for n in (1, 2, 3)))
    await add(unit, *(jobs := [enqueue(handlers.send, n) for n in (1, 2, 3)]))

    assert (await settle(work_one(unit, jobs[2], registry=registry))).args == {"order_id": 3}
    assert (await settle(work_one(unit, jobs[1].id, registry=registry))).args == {"order_id": 2}
    assert (await settle(work_one(unit, registry=registry))).args == {"order_id": 1}
    with pytest.raises(AssertionError, match="nothing was run: no job waits in this session's database; 3 have ended"):
        await settle(work_one(unit, registry=registry))


async def test_results_logs_and_progress_are_there(unit: Any, registry: Registry) -> None:
    """As a worker would have written them."""

    @task(registry=registry, record=True, keep_logs=True)
    def count(ctx: JobContext, least: int) -> dict[str, int]:
        ctx.logger.info("counting from %d", least)
        ctx.progress(0.5, "half")
        return {"lines": least}

    await add(unit, job := enqueue(count, 3))

    ran = await settle(work_one(unit, registry=registry))

    assert ran.result == {"lines": 3}
    assert count.result(job) == {"lines": 3}
    assert await settle(unit.scalar(select(Job.progress))) == 0.5
    lines = (await settle(unit.execute(job_logs(job.id)))).all()
    assert [row.message for row in lines] == ["counting from 3"]


async def test_a_moved_clock_lets_retries_and_delays_be_due(unit: Any, registry: Registry) -> None:
    """The retry after its backoff, and the job that was delayed."""

    @task(registry=registry)
    def fail_twice(ctx: JobContext) -> None:
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")

    await add(unit, job := enqueue(fail_twice.options(delay=HOUR)))
    assert len(await settle(drain(unit, registry=registry))) == 0

    outcomes = []
    for _ in range(3):
        await settle(move_clock(unit, HOUR))
        outcomes.append((await settle(work_one(unit, registry=registry, raise_errors=False))).outcome)

    assert outcomes == ["retried", "retried", "completed"]
    assert job.status is JobStatus.COMPLETED


async def test_a_moved_clock_lets_a_schedule_enqueue(unit: Any, registry: Registry) -> None:
    """Each time for one tick, because a worker that was away would make up for one."""

    @task(registry=registry)
    def report() -> None: ...

    await add(unit, Schedule("0 7 * * *", report))
    assert len(await settle(drain(unit, registry=registry))) == 0

    await settle(move_clock(unit, timedelta(days=1)))
    assert (await settle(drain(unit, registry=registry))).outcomes == {"completed": 1}
    assert len(await settle(drain(unit, registry=registry))) == 0


async def test_a_job_whose_worker_died_is_rescued_when_its_lease_is_over(
    unit: Any, registry: Registry, handlers: Handlers
) -> None:
    """Nothing is lost in between."""
    await add(unit, Order(id=1), job := enqueue(handlers.send, 1))
    await settle(
        unit.execute(
            text(
                "UPDATE sa_jobqueue.job SET status = 'running', attempt = 1, claims = 1, claim_token = 7, worker = 'gone', "
                "lease_expires_at = now() + interval '60 s'"
            )
        )
    )
    assert "is being run by gone" in (await settle(drain(unit, registry=registry))).left

    await settle(move_clock(unit, 61))
    assert (await settle(drain(unit, registry=registry))).outcomes == {"completed": 1}
    assert job.rescues == 1


async def test_a_job_expires_when_its_time_is_over(unit: Any, registry: Registry, handlers: Handlers) -> None:
    await add(unit, Order(id=1), job := enqueue(handlers.send.options(expires_in=60, delay=30), 1))
    await settle(move_clock(unit, 61))

    assert len(await settle(drain(unit, registry=registry))) == 0
    assert job.status is JobStatus.CANCELLED


async def test_pauses_and_rates_hold(unit: Any, registry: Registry, handlers: Handlers) -> None:
    """As in production, and the reason is said; a moved clock gives a rate its units back."""
    await add(unit, *(Order(id=n) for n in (1, 2, 3)), *(enqueue(handlers.send, n) for n in (1, 2, 3)))
    await settle(unit.execute(set_limit("mail", rate=Rate(2, per=60, burst=2))))

    assert len(await settle(drain(unit, registry=registry))) == 2
    assert "waits for rate mail: 2 in 60 s" in str(await settle(explain(unit, registry=registry)))
    await settle(move_clock(unit, 60))
    await settle(unit.execute(pause("mail", reason="deploy")))
    drained = await settle(drain(unit, registry=registry))
    assert len(drained) == 0
    assert "waits for pause mail to end: deploy" in drained.left
    assert (
        len(
            [
                await settle(work_one(unit, job, registry=registry))
                for job in (await settle(unit.scalars(select(Job.id).where(Job.is_live)))).all()
            ]
        )
        == 1
    )


async def test_a_breaker_opens_and_a_probe_closes_it(unit: Any, registry: Registry) -> None:
    """Within the test's transaction, also where an operator has opened it. A moved clock ends its rest."""
    is_down = [True]

    @task(registry=registry)
    def other() -> None: ...

    @task(registry=registry, max_attempts=1, breaker=Breaker(failures=2, rest=60))
    def call() -> None:
        if is_down[0]:
            raise ConnectionError("the other side is down")

    await add(unit, *(enqueue(call) for _ in range(5)))
    assert len(await settle(drain(unit, registry=registry, raise_errors=False))) == 2
    is_down[0] = False
    await settle(move_clock(unit, 61))
    await settle(unit.execute(open_breaker(other, rest=1)))
    await add(unit, enqueue(other), enqueue(other))
    await settle(move_clock(unit, 61))
    assert (await settle(drain(unit, registry=registry))).outcomes == {"completed": 5}
    assert (await settle(unit.execute(select(LimitRow)))).all() == []


async def test_a_duplicate_does_not_run(unit: Any, registry: Registry, handlers: Handlers) -> None:
    """The key is free again when the job has ended."""
    once = handlers.send.options(unique=Unique())
    await add(unit, Order(id=1), enqueue(once, 1), enqueue(once, 1))

    assert len(await settle(drain(unit, registry=registry))) == 1
    await add(unit, again := enqueue(once, 1))
    assert not again.is_duplicate


async def test_jobs_that_are_not_kept_are_gone(unit: Any, registry: Registry) -> None:
    @task(registry=registry, retain=0)
    def forget() -> None: ...

    await add(unit, enqueue(forget))
    assert (await settle(drain(unit, registry=registry))).outcomes == {"completed": 1}
    assert await settle(unit.scalar(select(func.count()).select_from(Job))) == 0


async def test_long_arguments_come_along(unit: Any, registry: Registry) -> None:
    """Also under limits, where a claim leaves them out."""
    lengths = []

    @task(registry=registry, limits=Limits(running=1))
    def measure(value: str) -> None:
        lengths.append(len(value))

    await add(unit, enqueue(measure.options(key="k"), "x" * 100_000), enqueue(measure, "x" * 100_000))
    await settle(drain(unit, registry=registry))

    assert lengths == [100_000] * 2


async def test_a_workflow_is_worked_through(unit: Any, registry: Registry) -> None:
    """Its members wait for each other, take what the others return, and may be of both kinds."""

    @task(registry=registry, record=True)
    def count(text: str) -> int:
        return len(text)

    @task(registry=registry, record=True)
    async def add_up(parts: list[int], more: int) -> int:
        return sum(parts) + more

    workflow = Workflow("report")
    counts = [workflow.add(count, text) for text in ("a", "bb", "ccc")]
    total = workflow.gather(counts, add_up, more=4)
    await add(unit, workflow)
    waiting = str(await settle(explain(unit, registry=registry)))

    drained = await settle(drain(unit, registry=registry))

    assert f"job {total.job_id} " in waiting
    assert "waits for" in waiting
    assert [(one.args, one.result) for one in drained] == [
        ({"text": "a"}, 1),
        ({"text": "bb"}, 2),
        ({"text": "ccc"}, 3),
        ({"more": 4}, 10),
    ]
    assert (await settle(explain(unit, registry=registry))).ended == 4


async def test_middleware_is_around_each_job(unit: Any, registry: Registry, handlers: Handlers) -> None:
    """And is told what came of it."""
    said: list[str] = []

    class Saying(Middleware):
        @contextmanager
        def around(self, attempt: Any) -> Iterator[None]:
            attempt.at_end(lambda outcome, error: said.append(outcome))
            said.append("begins")
            yield

    add_middleware(Saying())
    await add(unit, *(Order(id=n) for n in (1, 2)), enqueue(handlers.send, 1), enqueue(handlers.send_async, 2))
    await settle(drain(unit, registry=registry))

    assert said == ["begins", "completed"] * 2


async def test_an_async_handler_has_its_timeout(unit: Any, registry: Registry) -> None:
    @task(registry=registry, timeout=0.01)
    async def hang() -> None:
        await asyncio.Event().wait()

    await add(unit, enqueue(hang))

    with pytest.raises(HandlerTimeout):
        await settle(drain(unit, registry=registry))


async def test_handlers_have_sessions_of_the_registrys_makers(unit: Any, registry: Registry) -> None:
    """As in production: an application's class of sessions is what its handlers get."""
    classes: list[type[Any]] = []

    class TheirSession(Session): ...

    class TheirAsyncSession(AsyncSession): ...

    registry.sessionmaker, registry.async_sessionmaker = TheirSession, TheirAsyncSession

    @task(registry=registry)
    def look(ctx: JobContext) -> None:
        classes.append(type(ctx.session))
        ctx.session.execute(text("SELECT 1"), bind_arguments={"mapper": Order.__mapper__})

    @task(registry=registry)
    async def look_async(ctx: AsyncJobContext) -> None:
        classes.append(type(ctx.session))

    await add(unit, enqueue(look), enqueue(look_async))
    await settle(drain(unit, registry=registry))

    assert classes == [TheirSession, TheirAsyncSession]


async def test_a_test_that_is_stopped_in_a_handler_is_stopped(unit: Any, registry: Registry) -> None:
    """KeyboardInterrupt, pytest.fail() and the like are not an attempt's."""

    @task(registry=registry)
    def stop() -> None:
        pytest.fail("in the handler")

    await add(unit, enqueue(stop))

    with pytest.raises(pytest.fail.Exception, match="in the handler"):
        await settle(drain(unit, registry=registry))


def test_a_session_without_a_loop_runs_async_handlers(session: Session, registry: Registry, handlers: Handlers) -> None:
    """In a test that is no coroutine."""
    session.add_all([Order(id=1), enqueue(handlers.send_async, 1)])

    assert drain(session, registry=registry).outcomes == {"completed": 1}
    assert session.get_one(Order, 1).receipt == "sent by attempt 1"


def test_what_was_committed_by_others_since_the_transaction_began_is_due(
    session: Session, engine: Engine, registry: Registry, handlers: Handlers
) -> None:
    """For the session's now() its time has not come."""
    session.execute(select(func.now()))
    with Session(engine) as other:
        other.add_all([Order(id=1), enqueue(handlers.send, 1)])
        other.commit()

    assert len(drain(session, registry=registry)) == 1


def test_what_is_no_session_is_refused(engine: Engine) -> None:
    with pytest.raises(TypeError, match="a Session or an AsyncSession is expected"):
        drain(engine)  # type: ignore[call-overload]


def test_what_an_assertion_shows_of_many_jobs_is_short() -> None:
    """How many ended in which way, and ten of them, first those that did not complete; long arguments are cut."""
    ran = [Ran(id, "send", "mail", {"text": "x" * 10_000}, 1, "completed") for id in range(1, 5_001)]
    ran[2_999] = Ran(3_000, "send", "mail", {}, 1, "failed", ValueError("no such order"))
    said = repr(Drained(ran, ""))
    assert said.startswith(
        "<5,000 jobs: 4,999 completed, 1 failed; job 3000 send(): failed (ValueError: no such order); job 1 send("
    )
    assert said.endswith("; and 4,990 more>")
    assert len(said) < 3_000
