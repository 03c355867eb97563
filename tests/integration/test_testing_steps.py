"""Steps in the testing kit: in the test's own transaction, through waits, kills and replays."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session, undefer

from sa_jobqueue import (
    AsyncJobContext,
    Callbacks,
    Failed,
    Job,
    JobContext,
    JobStatus,
    Registry,
    RetryPolicy,
    enqueue,
    task,
)
from sa_jobqueue.errors import SignalTimeout
from sa_jobqueue.models import Step
from sa_jobqueue.testing import JobQueue
from tests.support.joined import KINDS, NAMES, Base, Line, Order, joined, settle

pytestmark = pytest.mark.usefixtures("tables")


@pytest.fixture
def tables(engine: Engine) -> None:
    """The application's tables, empty."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE joined_orders CASCADE"))


#: As in test_testing_drain.
USUAL = ("psycopg-sync-outer", "asyncpg-async-outer")


@pytest.fixture(
    params=[
        pytest.param(kind, id=name, marks=[] if name in USUAL else pytest.mark.nightly)
        for kind, name in zip(KINDS, NAMES, strict=True)
    ]
)
async def kit(request: pytest.FixtureRequest, shared_database_url: str, registry: Registry) -> AsyncIterator[Any]:
    """The kit with a session of each kind."""
    driver, is_async, how = request.param
    async with joined(shared_database_url, driver, is_async=is_async, how=how) as session:
        yield JobQueue(session, registry=registry)


async def add(kit: Any, *rows: Any) -> list[Any]:
    kit.session.add_all(rows)
    await settle(kit.session.flush())
    return list(rows)


async def run(kit: Any) -> list[str]:
    return [ran.outcome for ran in await settle(kit.drain())]


async def test_a_drain_goes_through_waits(kit: Any, registry: Registry) -> None:
    """In both kinds of handlers, steps are not called again, ctx.session commits once, and the writes of a step's session exist while the job waits."""
    label = Mock(return_value="L1")

    @task(registry=registry, name="ship")
    def ship(ctx: JobContext, number: int) -> None:
        order = ctx.session.get_one(Order, number, options=[undefer(Order.note)])
        note = f"{ctx.step('label', label)}, attempt {ctx.attempt}"
        with ctx.step_session("mark") as session:
            session.add(Line(order_id=order.id))
        with ctx.session.begin_nested():
            assert not order.note
            order.note = note
        order.receipt = ctx.wait_signal(f"order:{number}", str)
        ctx.sleep_for(timedelta(hours=1))

    @task(registry=registry, name="ship async")
    async def ship_async(ctx: AsyncJobContext, number: int) -> None:
        order = await ctx.session.get_one(Order, number, options=[undefer(Order.note)])
        note = f"{await ctx.step('label', label)}, attempt {ctx.attempt}"
        async with ctx.step_session("mark") as session:
            session.add(Line(order_id=order.id))
        async with ctx.session.begin_nested():
            assert not order.note
            order.note = note
        order.receipt = await ctx.wait_signal(f"order:{number}", str)
        await ctx.sleep_for(timedelta(hours=1))

    orders = await add(kit, Order(id=1), Order(id=2))
    jobs = await add(kit, enqueue(ship, 1), enqueue(ship_async, 2))

    drained = await settle(kit.drain())
    assert [(ran.outcome, ran.waits_for) for ran in drained] == [
        ("suspended", f"signal 'order:{number}'") for number in (1, 2)
    ]
    assert "(waits for signal 'order:1')" in repr(drained)
    lines = select(func.count()).select_from(Line)
    assert (await settle(kit.session.execute(lines))).scalar() == 2
    assert re.search(r"waits for signal order:1 since [-0-9:+ ]+: signal\(\) sends it", repr(await settle(kit.drain())))

    for number in (1, 2):
        await settle(kit.signal(f"order:{number}", f"signed {number}"))
    assert await run(kit) == ["suspended"] * 2
    assert [job.status for job in jobs] == [JobStatus.BLOCKED] * 2
    await settle(kit.move_clock(timedelta(hours=1)))
    assert await run(kit) == ["completed"] * 2

    assert [(order.receipt, order.note) for order in orders] == [
        ("signed 1", "L1, attempt 1"),
        ("signed 2", "L1, attempt 1"),
    ]
    assert (await settle(kit.session.execute(lines))).scalar() == 2
    assert label.call_count == 2


async def test_a_run_that_is_killed_after_a_step_does_not_repeat_it(kit: Any, registry: Registry) -> None:
    """The drain ends there, and the next drain rescues the job. A step whose record is lost is called again, and the writes of ctx.session are undone."""
    called: list[str] = []

    @task(registry=registry, name="ship")
    def ship(ctx: JobContext) -> None:
        ctx.session.add(Line(order_id=1))
        ctx.session.flush()
        ctx.step("label", called.append, "label")
        with ctx.step_session("mark") as session:
            session.add(Order(id=2))
        ctx.step("book", called.append, "book")

    @task(registry=registry, name="ship async")
    async def ship_async(ctx: AsyncJobContext) -> None:
        await asyncio.gather(ctx.step("slow", slow), ctx.step("label", called.append, "label"))

    async def slow() -> None:
        called.append("slow")
        if "label" not in called[3:]:
            await asyncio.Event().wait()  # until its run is ended after the other step

    await add(kit, Order(id=1))
    (job, _) = await add(kit, enqueue(ship), enqueue(ship_async))
    with kit.crash_after("label"):
        assert await run(kit) == ["crashed"]
    assert (job.status, called) == (JobStatus.RUNNING, ["label"])
    with (
        kit.crash_after("book", recorded=False),
        pytest.warns(RuntimeWarning, match="the writes of step 'mark' were undone"),
    ):
        assert await run(kit) == ["crashed"]
    with kit.crash_after("label"):
        assert await run(kit) == ["completed", "crashed"]
    assert (job.rescues, called[:3]) == (2, ["label", "book", "book"])
    assert [
        (await settle(kit.session.scalars(select(func.count()).select_from(table)))).one() for table in (Order, Line)
    ] == [2, 1]

    gone = pytest.raises(AssertionError, match="no run came to the end of a step 'gone'; the steps that ended: 'slow'")
    with gone, kit.crash_after("gone"):
        assert await run(kit) == ["completed"]
    assert sorted(called[3:]) == ["label", "slow", "slow"]


async def test_a_replay_shows_what_is_done_outside_of_steps(kit: Any, registry: Registry) -> None:
    """Before a wait and after it, it lists calls in the handler, and steps whose names or arguments differ. Then the job goes on."""
    mail, runs = Mock(), iter(range(10))
    mail.send = Mock(name="send")
    mail.send._mock_name = "mail.send"

    def address() -> str:
        return "ann@example"

    @task(registry=registry, name="clean")
    async def clean(ctx: AsyncJobContext) -> None:
        order = await ctx.session.get_one(Order, 1)
        order.receipt = await ctx.step("label", lambda: str(mail.send("label")))
        ctx.logger.info("shipped")

    @task(registry=registry, name="ship")
    def ship(ctx: JobContext) -> None:
        number = next(runs)
        ctx.step("label", address)
        ctx.step("other", str, number)
        ctx.step(f"never {number}", str)
        if number == 0:
            open(__file__).close()
        mail.send([address() for _ in range(2)])
        ctx.wait_signal("go")
        with Session(ctx.session.connection(), join_transaction_mode="create_savepoint") as own:
            own.commit()

    await add(kit, Order(id=1))
    good, job = await add(kit, enqueue(clean), enqueue(ship))
    assert not (await settle(kit.check_replay(good))).repeated
    assert (good.status, good.claims, mail.send.call_count) == (JobStatus.COMPLETED, 2, 1)

    replay = await settle(kit.check_replay(job, harmless=["tests.integration.test_testing_steps."]))
    assert [call.function for call in replay.repeated] == ["step 'other'", "step 'never 1'", "mail.send"]
    assert (replay.repeated[2].code, replay.outcome) == ("mail.send([address() for _ in range(2)])", "suspended")
    await settle(kit.signal("go"))
    after = await settle(kit.check_replay(job.id))
    assert [call.function.rpartition(".")[2] for call in after.repeated][-3:] == ["address", "send", "commit"]
    assert after.repeated[-1][::2] == ("sqlalchemy.orm.session.Session.commit", "own.commit()")
    assert after.outcome == "completed"


def test_a_job_waits_for_other_jobs_in_one_drain(session: Session, registry: Registry) -> None:
    """A step enqueues the jobs in a session of the application on the test's connection. A job fails. A failed step is tried again at once."""
    kit, results, tries = JobQueue(session, registry=registry), list[Any](), iter(range(10))

    @task(registry=registry, name="part", record=True, max_attempts=1)
    def part(number: int) -> int:
        return 10 // number

    def enqueue_parts() -> list[int]:
        if next(tries) < 2:
            raise ConnectionError("away")
        with Session(session.connection(), join_transaction_mode="create_savepoint") as own:
            jobs = [enqueue(part, number) for number in (2, 0)]
            own.add_all(jobs)
            own.commit()
            return [job.id for job in jobs]

    @task(registry=registry, name="whole")
    def whole(ctx: JobContext) -> None:
        ctx.session.scalars(select(Job.id)).all()
        ids = ctx.step("parts", enqueue_parts, retry=RetryPolicy(base=10))
        results[:] = ctx.join(ids)
        try:
            ctx.wait_signal(ctx.callback_url("paid").signal, timeout=timedelta(days=1))
        except SignalTimeout as error:
            results.append(str(error))

    registry.callbacks = Callbacks(url="https://shop.example/hooks", keys=["0123456789abcdef"])
    session.add(job := enqueue(whole))
    drained = kit.drain(raise_errors=False)
    assert drained.outcomes == {"suspended": 2, "completed": 1, "failed": 1}
    assert drained[0].waits_for == f"the ends of the jobs {job.id + 1}, {job.id + 2}"
    kit.move_clock(timedelta(days=1))
    assert kit.drain().outcomes == {"completed": 1}
    assert results[0] == 5
    assert isinstance(results[1], Failed)
    assert results[2].endswith("has come in time")
    assert session.scalars(select(Step.name).order_by(Step.ended_at)).all() == [
        "parts",
        "join",
        "callback:paid",
        f"signal:job:{job.id}:paid",
    ]
    session.rollback()
