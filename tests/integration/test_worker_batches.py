"""Batch handlers: many jobs in one call, in one transaction, and each with an end of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine, create_engine, event, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sa_jobqueue import (
    INJECTED,
    AsyncBatchContext,
    Attempt,
    BatchContext,
    Batching,
    Discard,
    Inject,
    Job,
    JobContext,
    JobStatus,
    Limits,
    Middleware,
    Rate,
    Registry,
    RetryPolicy,
    Snooze,
    add_middleware,
    enqueue,
    remove_middleware,
    task,
)
from sa_jobqueue.arguments.references import references
from sa_jobqueue.errors import OptionError, TaskError
from sa_jobqueue.testing import check_replay, work_one
from sa_jobqueue.testing import drain as drain_in
from sa_jobqueue.worker.running import batches
from tests.support.commands import start_command
from tests.support.databases import driver_url
from tests.support.killed import FOLDER
from tests.support.waiting import wait_until
from tests.support.working import (
    add,
    add_one,
    cancel,
    drain,
    job_of,
    long_healthy,
    renew_now,
    services_of,
    time_out,
    worker_for,
    working,
)

EIGHT = {"default": 8}
AT_ONCE = RetryPolicy(base=0.0, jitter=0)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "order_of_batch"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int]
    region: Mapped[int] = mapped_column(server_default="1", deferred=True)


class Entry(Base):
    __tablename__ = "entry_of_batch"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


CLIENTS: list[list[int]] = []


def one_client() -> list[int]:
    CLIENTS.append([])
    return CLIENTS[-1]


def of_a_job(ctx: JobContext) -> int:
    return ctx.job_id


@pytest.fixture(autouse=True)
def tables(engine: Engine) -> None:
    Base.metadata.create_all(engine)


def entries(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return sorted(session.scalars(select(Entry.n)))


def jobs(engine: Engine, ids: list[int]) -> list[Job]:
    return [job_of(engine, id) for id in ids]


def ends(engine: Engine, ids: list[int]) -> set[JobStatus]:
    return {job.status for job in jobs(engine, ids)}


def writer(registry: Registry, batching: Batching, **options: Any) -> tuple[Any, list[list[int]]]:
    """A task that writes a row for each job, and the numbers of each of its calls. A job with a negative number makes it fail."""
    calls: list[list[int]] = []

    @task(registry=registry, name="write", batch=batching, **options)
    def write(ctx: BatchContext, numbers: list[int]) -> None:
        calls.append(numbers)
        ctx.session.add_all(Entry(n=n) for n in numbers)
        ctx.session.flush()
        if min(numbers) < 0:
            raise ValueError("a negative number")

    return write, calls


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """The statements and commits of this engine."""
    found: list[str] = []

    def executed(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement.strip().split()[0])

    def committed(_: Any) -> None:
        found.append("COMMIT")

    event.listen(engine, "before_cursor_execute", executed)
    event.listen(engine, "commit", committed)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", executed)
        event.remove(engine, "commit", committed)


def test_jobs_run_in_one_call_with_one_select_for_their_objects_and_one_commit(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Eight jobs: a SELECT for the objects, an INSERT of the handler's, an UPDATE for the completions, a COMMIT."""
    got: list[list[int]] = []

    @task(registry=registry, name="index", batch=Batching(500))
    def index(ctx: BatchContext, orders: list[Order], notes: list[str]) -> None:
        got.append([order.id for order in orders])
        assert notes == [str(order.id) for order in orders]
        assert [job.attempt for job in ctx.jobs] == [1] * 8
        ctx.session.add_all(Entry(n=order.id) for order in orders)

    with Session(engine) as session:
        orders = [Order(id=n, tenant_id=n % 2) for n in range(8)]
        session.add_all(orders)
        session.flush()
        made = [enqueue(index, order, str(order.id)) for order in orders]
        session.add_all(made)
        session.commit()
        ids = [job.id for job in made]
    own = create_engine(driver_url(url, "psycopg"))
    with statements(own) as found:
        drain(engine, registry, queues=EIGHT, sessionmaker=sessionmaker(own))
    own.dispose()
    assert got == [list(range(8))]
    assert entries(engine) == list(range(8))
    assert ends(engine, ids) == {JobStatus.COMPLETED}
    assert [one for one in found if one != "BEGIN"] == ["SELECT", "INSERT", "WITH", "COMMIT"]


async def test_an_async_handler_gets_batches_as_well(
    engine: Engine, async_engine: AsyncEngine, registry: Registry
) -> None:
    """With an AsyncSession; a failure is found in halves, too."""
    calls: list[list[int]] = []

    @task(registry=registry, name="write", batch=Batching(500), max_attempts=1)
    async def write(ctx: AsyncBatchContext, orders: list[Order]) -> None:
        calls.append([order.id for order in orders])
        ctx.session.add_all(Entry(n=order.id) for order in orders)
        await ctx.session.flush()
        if any(order.id == 3 for order in orders):
            raise ValueError("three")

    with Session(engine) as session:
        orders = [Order(id=n, tenant_id=1) for n in range(4)]
        session.add_all(orders)
        session.commit()
        ids = add(engine, *(enqueue(write, order) for order in orders))
    await worker_for(engine, registry, async_engine=async_engine, queues=EIGHT).serve(until_idle=True)
    assert calls[0] == [0, 1, 2, 3]
    assert {(0, 1), (2, 3), (3,)} < {tuple(call) for call in calls}
    assert entries(engine) == [0, 1, 2]
    assert [job.status for job in jobs(engine, ids)] == [JobStatus.COMPLETED] * 3 + [JobStatus.FAILED]


def test_a_failure_is_halved_until_the_bad_job_is_alone_and_only_that_spends_an_attempt(
    engine: Engine, registry: Registry
) -> None:
    """One bad job among eight: three times halved."""
    write, calls = writer(registry, Batching(500), retry=AT_ONCE, max_attempts=2)
    ids = add(engine, *(enqueue(write, -1 if n == 5 else n) for n in range(8)))
    drain(engine, registry, queues={"default": 8})
    assert calls[0] == [0, 1, 2, 3, 4, -1, 6, 7]
    assert sorted(map(len, calls)) == [1, 1, 1, 2, 2, 4, 4, 8]  # the bad job alone, twice
    assert entries(engine) == [0, 1, 2, 3, 4, 6, 7]
    bad = ids.pop(5)
    assert [(job.status, job.attempt, job.errors) for job in jobs(engine, ids)] == [(JobStatus.COMPLETED, 1, [])] * 7
    assert job_of(engine, bad).status == JobStatus.FAILED
    assert [error["attempt"] for error in job_of(engine, bad).errors] == [1, 2]


def test_single_jobs_are_failed_and_retried_and_what_the_batch_wrote_is_kept(
    engine: Engine, registry: Registry
) -> None:
    """`ctx.fail` and `ctx.retry` are as if a handler had raised for that job alone; the others complete."""
    calls: list[list[int]] = []

    @task(registry=registry, name="single", batch=Batching(500), retry=AT_ONCE, max_attempts=1)
    def single(ctx: BatchContext, numbers: list[int]) -> None:
        calls.append(numbers)
        ctx.session.add_all(Entry(n=n) for n in numbers)
        for job, number in zip(ctx.jobs, numbers, strict=True):
            if number == 1:
                ctx.fail(job, ValueError("one"))
            elif number == 2 and len(calls) == 1:
                ctx.retry(job, 3_600, reason="later")
            elif number == 3:
                ctx.fail(job, Snooze(3_600))
        with pytest.raises(OptionError, match="takes an exception, not 'one'"):
            ctx.fail(ctx.jobs[0], "one")  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"take a job of this batch, ctx.jobs\[0\] say, not 7"):
            ctx.retry(7)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"take a job of this batch, ctx.jobs\[0\] say, not \[\]"):
            ctx.retry([])  # type: ignore[arg-type]

    single = single.options(max_attempts=2)
    ids = add(engine, *(enqueue(single.options(max_attempts=1 if n == 1 else 5), n) for n in range(4)))
    drain(engine, registry, queues=EIGHT)
    assert calls == [[0, 1, 2, 3]]
    done, failed, retried, snoozed = jobs(engine, ids)
    assert (done.status, failed.status) == (JobStatus.COMPLETED, JobStatus.FAILED)
    assert (retried.status, retried.attempt, retried.errors[-1]["message"]) == (JobStatus.QUEUED, 1, "later")
    assert (snoozed.status, snoozed.attempt) == (JobStatus.QUEUED, 0)
    assert failed.errors[-1]["message"] == "one"
    assert entries(engine) == [0, 1, 2, 3]


def test_a_list_has_a_result_for_each_job(engine: Engine, registry: Registry) -> None:
    """An item may be an outcome, too."""

    @task(registry=registry, name="double", batch=Batching(500), record=True)
    def double(ctx: BatchContext, numbers: list[int]) -> list[int | Discard]:
        return [Discard("zero") if n == 0 else 2 * n for n in numbers]

    ids = add(engine, *(enqueue(double, n) for n in range(4)))
    drain(engine, registry, queues=EIGHT)
    found = jobs(engine, ids)
    assert [job.result for job in found] == [None, 2, 4, 6]
    assert found[0].status == JobStatus.FAILED
    assert double.result(found[3]) == 6


def test_a_list_of_another_length_fails_and_says_both_lengths(engine: Engine, registry: Registry) -> None:
    """In halves, until each job is alone."""

    @task(registry=registry, name="short", batch=Batching(500), record=True, max_attempts=1)
    def short(ctx: BatchContext, numbers: list[int]) -> list[int]:
        return [n for n in numbers if n != 1]

    ids = add(engine, *(enqueue(short, n) for n in range(2)))
    drain(engine, registry, queues=EIGHT)
    done, failed = jobs(engine, ids)
    assert done.result == 0
    assert "returned 0 results for 1 jobs" in failed.errors[-1]["message"]


def test_a_job_whose_arguments_or_object_are_wrong_does_not_concern_the_others(
    engine: Engine, registry: Registry
) -> None:
    """It fails alone, and the handler is called without it."""
    calls: list[list[int]] = []

    @task(registry=registry, name="index", batch=Batching(500))
    def index(ctx: BatchContext, orders: list[Order]) -> None:
        calls.append([order.id for order in orders])

    with Session(engine) as session:
        orders = [Order(id=n, tenant_id=1) for n in range(3)]
        session.add_all(orders)
        session.commit()
        ids = add(engine, *(enqueue(index, order) for order in orders))
        session.delete(orders[1])
        session.commit()
        session.execute(update(Job).where(Job.id == ids[2]).values(args={"orders": "x"}))
        session.commit()
    drain(engine, registry, queues=EIGHT)
    done, missing, wrong = jobs(engine, ids)
    assert calls == [[0]]
    assert (done.status, missing.status, wrong.status) == (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.FAILED)
    assert "Order 1 is not there" in missing.errors[-1]["message"]
    assert "is no key of Order" in wrong.errors[-1]["message"]


def test_jobs_whose_objects_are_missing_cost_a_batch_time_in_proportion_to_their_number(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The references of each job are searched a fixed number of times, also if all objects are missing."""
    searched: list[object] = []

    def counted(given: Any) -> Any:
        searched.append(given)
        return references(given)

    monkeypatch.setattr(batches, "references", counted)

    @task(registry=registry, name="index", batch=Batching(500))
    def index(ctx: BatchContext, orders: list[Order]) -> None: ...

    with Session(engine) as session:
        orders = [Order(id=n, tenant_id=1) for n in range(40)]
        session.add_all(orders)
        session.commit()
        ids = add(engine, *(enqueue(index, order) for order in orders))
        session.execute(text("DELETE FROM order_of_batch"))
        session.commit()
    drain(engine, registry, queues={"default": 40})
    assert ends(engine, ids) == {JobStatus.FAILED}
    assert len(searched) < 200


# ---- how batches are put together


@pytest.mark.parametrize("by", ["n", "tenant_id"])
def test_a_batch_has_one_value_of_by(engine: Engine, registry: Registry, by: str) -> None:
    """`by` names an argument, or an attribute of a mapped one."""
    calls: list[list[tuple[int, int]]] = []

    @task(registry=registry, name="index", batch=Batching(500, by=by))
    def index(ctx: BatchContext, n: list[int], orders: list[Order]) -> None:
        calls.append([(number, order.tenant_id) for number, order in zip(n, orders, strict=True)])
        ctx.session.add_all(Entry(n=order.id) for order in orders)

    with Session(engine) as session:
        orders = [Order(id=n, tenant_id=n % 3) for n in range(12)]
        session.add_all(orders)
        session.commit()
        ids = add(engine, *(enqueue(index, order.id % 2, order) for order in orders))
    drain(engine, registry, queues={"default": 12})
    place = 0 if by == "n" else 1
    assert all(len({call[place] for call in each}) == 1 for each in calls)
    assert len(calls) == (2 if by == "n" else 3)
    assert entries(engine) == list(range(12))
    assert [(job.status, job.attempt, job.claims) for job in jobs(engine, ids)] == [(JobStatus.COMPLETED, 1, 1)] * 12


async def test_a_deferred_column_can_be_by_in_an_async_batch(
    engine: Engine, async_engine: AsyncEngine, registry: Registry
) -> None:
    """The column is read where the objects are loaded, which may wait for the database."""

    @task(registry=registry, name="index", batch=Batching(500, by="region"), max_attempts=1)
    async def index(ctx: AsyncBatchContext, orders: list[Order]) -> None: ...

    with Session(engine) as session:
        orders = [Order(id=n, tenant_id=1) for n in range(3)]
        session.add_all(orders)
        session.commit()
        ids = add(engine, *(enqueue(index, order) for order in orders))
    await worker_for(engine, registry, async_engine=async_engine, queues=EIGHT).serve(until_idle=True)
    assert ends(engine, ids) == {JobStatus.COMPLETED}


@pytest.mark.parametrize("by", ["n", None])
def test_an_upcaster_that_exits_fails_its_job_and_not_the_worker(
    engine: Engine, registry: Registry, by: str | None
) -> None:
    """Where `by` names an argument, the thread that claims reads the arguments."""

    @task(registry=registry, name="exits", batch=Batching(500, by=by), version=2, max_attempts=1)
    def exits(ctx: BatchContext, n: list[int]) -> None: ...

    @exits.upcast(1)
    def leave(args: dict[str, Any]) -> dict[str, Any]:
        raise SystemExit("no such version")

    ids = add(engine, *(enqueue(exits, 1) for _ in range(3)))
    with engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == ids[1]).values(extras=None))
    drain(engine, registry, queues=EIGHT)
    assert [job.status for job in jobs(engine, ids)] == [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.COMPLETED]


def test_a_batch_does_not_wait_where_its_worker_claims_no_more(engine: Engine, registry: Registry) -> None:
    """A worker with `max_jobs` starts its last batch, although more jobs are due."""
    early: list[bool] = []

    @task(registry=registry, name="wait", batch=Batching(8, wait=60))
    def wait(ctx: BatchContext, numbers: list[int]) -> None:
        early.append(monotonic() < ctx._batch.start_at)  # type: ignore[attr-defined]

    ids = add(engine, *(enqueue(wait, n) for n in range(5)))
    asyncio.run(worker_for(engine, registry, queues={"default": 3}, max_jobs=3).serve())
    assert early == [True]
    assert [job.status for job in jobs(engine, ids)] == [JobStatus.COMPLETED] * 3 + [JobStatus.QUEUED] * 2


def test_a_batch_waits_for_jobs_that_are_due_and_only_for_those(engine: Engine, registry: Registry) -> None:
    """The first claim is for the two slots, and the batch waits for the others. The ninth job is alone, and starts before its wait is over."""
    calls: list[list[int]] = []

    @task(registry=registry, name="wait", batch=Batching(8, wait=60))
    def wait(ctx: BatchContext, numbers: list[int]) -> None:
        calls.append(numbers)
        assert monotonic() < ctx._batch.start_at  # type: ignore[attr-defined]

    ids = add(engine, *(enqueue(wait, n) for n in range(9)))
    drain(engine, registry, queues={"default": 2})
    assert calls == [list(range(8)), [8]]
    assert ends(engine, ids) == {JobStatus.COMPLETED}


def test_limits_and_rates_count_each_job_of_a_batch(engine: Engine, registry: Registry) -> None:
    """At most three run at once, so no batch is larger; and a rate lets two start."""
    write, calls = writer(registry, Batching(500), limits=Limits(running=3))
    rated: list[list[int]] = []

    @task(
        registry=registry, name="rated", queue="rated", batch=Batching(500), limits=Limits(rate=Rate(1, 3_600, burst=2))
    )
    def of_a_rate(ctx: BatchContext, numbers: list[int]) -> None:
        rated.append(numbers)

    ids = add(engine, *(enqueue(write, n) for n in range(8)), *(enqueue(of_a_rate, n) for n in range(5)))
    drain(engine, registry, queues={"default": 8, "rated": 8})
    assert max(map(len, calls)) <= 3
    assert entries(engine) == list(range(8))
    assert sorted(n for call in rated for n in call) == [0, 1]
    assert [job.status for job in jobs(engine, ids[8:])] == [JobStatus.COMPLETED] * 2 + [JobStatus.QUEUED] * 3


def test_a_batch_holds_one_slot_and_another_task_runs_beside_it(engine: Engine, registry: Registry) -> None:
    """Two slots: a batch of jobs in the one, and a plain job in the other."""
    together = threading.Barrier(2, timeout=60)

    @task(registry=registry, name="many", batch=Batching(500))
    def many(ctx: BatchContext, numbers: list[int]) -> None:
        if len(numbers) > 1:
            together.wait()

    @task(registry=registry, name="plain")
    def plain(ctx: JobContext) -> None:
        together.wait()

    ids = add(engine, enqueue(many, 1), enqueue(many, 2), enqueue(many, 3), enqueue(plain))
    with working(engine, registry, queues={"default": 4}) as worker:
        wait_until(lambda: ends(engine, ids) == {JobStatus.COMPLETED})
        wait_until(lambda: worker.state().ended == 4)
        assert worker.state().started == 4


# ---- what happens to single jobs of a batch that runs


class Paused:
    """A batch handler whose first call waits."""

    def __init__(self, registry: Registry, **options: Any) -> None:
        self.calls: list[list[int]] = []
        self.inside, self.go = threading.Event(), threading.Event()
        self.then: Any = lambda ctx: None

        @task(registry=registry, name="paused", batch=Batching(500), **options)
        def paused(ctx: BatchContext, numbers: list[int]) -> None:
            self.calls.append(numbers)
            ctx.session.add_all(Entry(n=n) for n in numbers)
            ctx.session.flush()
            if len(self.calls) == 1:
                self.inside.set()
                self.go.wait(60)
                self.then(ctx)

        self.task = paused


def test_a_job_whose_claim_is_lost_is_left_out_and_the_others_run_again(engine: Engine, registry: Registry) -> None:
    """The completion of each job is fenced by its own token. If one is lost, nothing is committed."""
    paused = Paused(registry)
    ids = add(engine, *(enqueue(paused.task, n) for n in range(4)))
    with working(engine, registry, queues=EIGHT):
        assert paused.inside.wait(60)
        with engine.begin() as connection:  # another worker has it
            connection.execute(update(Job).where(Job.id == ids[2]).values(claim_token=Job.claim_token - 1))
        paused.go.set()
        others = [ids[0], ids[1], ids[3]]
        wait_until(lambda: ends(engine, others) == {JobStatus.COMPLETED})
    assert paused.calls == [[0, 1, 2, 3], [0, 1, 3]]
    assert entries(engine) == [0, 1, 3]
    assert job_of(engine, ids[2]).status == JobStatus.RUNNING
    assert [(job.attempt, job.rescues) for job in jobs(engine, others)] == [(1, 0)] * 3


def test_a_renewal_is_for_all_jobs_of_a_batch(engine: Engine, registry: Registry) -> None:
    """Each has a lease of its own, and a lost lease is found by the renewal."""
    paused = Paused(registry)
    ids = add(engine, *(enqueue(paused.task, n) for n in range(4)))
    with working(engine, registry, queues=EIGHT) as worker:
        assert paused.inside.wait(60)
        before = {job.id: job.lease_expires_at for job in jobs(engine, ids)}
        renew_now(worker)
        wait_until(lambda: all(job.lease_expires_at != before[job.id] for job in jobs(engine, ids)))
        paused.go.set()
        wait_until(lambda: ends(engine, ids) == {JobStatus.COMPLETED})


def test_a_cancel_of_one_job_is_decided_at_the_end_of_its_batch(engine: Engine, registry: Registry) -> None:
    """A job that completes has completed; a job that would run again is cancelled; the others do not notice."""
    paused = Paused(registry)
    paused.then = lambda ctx: ctx.retry(ctx.jobs[1])
    ids = add(engine, *(enqueue(paused.task, n) for n in range(3)))
    with working(engine, registry, queues=EIGHT):
        assert paused.inside.wait(60)
        cancel(engine, ids[0], ids[1])
        paused.go.set()
        wait_until(lambda: all(job.is_finished for job in jobs(engine, ids)))
    assert [job.status for job in jobs(engine, ids)] == [JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.COMPLETED]
    assert paused.calls == [[0, 1, 2]]


def test_a_cancelled_job_is_not_in_the_half_that_runs_again(engine: Engine, registry: Registry) -> None:
    """A cancel that the worker has heard of is not lost by the failure of the batch."""
    paused = Paused(registry)

    def fail(ctx: BatchContext) -> None:
        raise ValueError("the first time")

    paused.then = fail
    ids = add(engine, *(enqueue(paused.task, n) for n in range(2)))
    with working(engine, registry, queues=EIGHT) as worker:
        assert paused.inside.wait(60)
        cancel(engine, ids[0])
        renew_now(worker)
        wait_until(lambda: any(run.stop is not None for run in services_of(worker).runs.all()))
        paused.go.set()
        wait_until(lambda: all(job.is_finished for job in jobs(engine, ids)))
    assert [job.status for job in jobs(engine, ids)] == [JobStatus.CANCELLED, JobStatus.COMPLETED]
    assert paused.calls == [[0, 1], [1]]
    assert entries(engine) == [1]


async def test_the_timeout_is_the_calls_and_an_async_batch_is_halved_by_it(
    engine: Engine, async_engine: AsyncEngine, registry: Registry
) -> None:
    """The job that takes too long is found alone, and it alone spends an attempt."""

    @task(registry=registry, name="late", batch=Batching(500), timeout=0.3, max_attempts=1)
    async def late(ctx: AsyncBatchContext, numbers: list[int]) -> None:
        ctx.session.add_all(Entry(n=n) for n in numbers)
        if 3 in numbers:
            await asyncio.Event().wait()

    ids = add(engine, *(enqueue(late, n) for n in range(4)))
    await worker_for(engine, registry, async_engine=async_engine, queues=EIGHT).serve(until_idle=True)
    found = jobs(engine, ids)
    assert [job.status for job in found] == [JobStatus.COMPLETED] * 3 + [JobStatus.FAILED]
    assert "took longer than its timeout" in found[3].errors[-1]["message"]
    assert entries(engine) == [0, 1, 2]
    assert [job.errors for job in found[:3]] == [[]] * 3


def test_a_job_whose_deadline_passes_in_a_batch_fails_and_the_others_run_again(
    engine: Engine, registry: Registry
) -> None:
    """A deadline is the job's own."""
    paused = Paused(registry)
    ids = add(engine, enqueue(paused.task, 0), enqueue(paused.task.options(deadline=3_600), 1), enqueue(paused.task, 2))
    with working(engine, registry, queues=EIGHT) as worker:
        assert paused.inside.wait(60)
        services = services_of(worker)
        (late,) = (run for run in services.runs.all() if run.timeout_at is not None)
        late.timeout_at = 0.0
        services.maintenance.wake()
        wait_until(lambda: late.settled)
        paused.go.set()
        wait_until(lambda: not services.running())
    assert paused.calls == [[0, 1, 2], [0, 2]]
    assert entries(engine) == [0, 2]
    first, second, third = jobs(engine, ids)
    assert (first.status, third.status) == (JobStatus.COMPLETED, JobStatus.COMPLETED)
    assert "still running at the deadline" in second.errors[-1]["message"]


@pytest.mark.parametrize("kind", ["def", "async"])
def test_a_batch_all_of_whose_jobs_are_late_for_their_deadlines_is_stopped(
    engine: Engine, async_engine: AsyncEngine, registry: Registry, kind: str
) -> None:
    """An async handler is cancelled, and a handler on a thread learns it from `ctx.cancelled`; until it comes back, its slot is stuck."""
    inside, go, stopped = threading.Event(), threading.Event(), threading.Event()
    heard: list[str] = []

    class Heard(Middleware):
        def around(self, attempt: Attempt) -> Any:
            attempt.at_end(lambda outcome, error: heard.append(outcome))
            return super().around(attempt)

    def late(ctx: BatchContext, numbers: list[int]) -> None:
        inside.set()
        go.wait(60)
        if ctx.cancelled:
            stopped.set()

    async def async_late(ctx: AsyncBatchContext, numbers: list[int]) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    handler: Any = late if kind == "def" else async_late
    made = task(registry=registry, name="late", batch=Batching(500), max_attempts=1)(handler)
    ids = add(engine, *(enqueue(made.options(deadline=3_600), n) for n in range(3)))
    middleware = Heard()
    add_middleware(middleware)
    try:
        with working(engine, registry, async_engine=async_engine, queues=EIGHT) as worker:
            assert inside.wait(60)
            slots = services_of(worker).all_slots["default"]
            for run in services_of(worker).runs.all():
                run.timeout_at = 0.0
            services_of(worker).maintenance.wake()
            wait_until(lambda: ends(engine, ids) == {JobStatus.FAILED})
            if kind == "def":
                assert slots.stuck == 1
            go.set()
            assert stopped.wait(60)
            wait_until(lambda: (slots.running, slots.stuck) == (0, 0))
    finally:
        remove_middleware(middleware)
    assert heard == ["released"]


def test_a_job_that_has_lost_two_workers_runs_alone(engine: Engine, registry: Registry) -> None:
    """It may be why they died."""
    write, calls = writer(registry, Batching(500))
    ids = add(engine, *(enqueue(write, n) for n in range(4)))
    with engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == ids[1]).values(rescues=2))
    drain(engine, registry, queues=EIGHT)
    assert sorted(calls) == [[0, 2, 3], [1]]


def test_jobs_of_a_batch_that_hangs_on_a_thread_go_back_without_an_attempt(engine: Engine, registry: Registry) -> None:
    """As if their worker had died, because nothing tells which job took so long; what the late handler writes is not kept."""
    paused = Paused(registry, timeout=3_600)
    ids = add(engine, *(enqueue(paused.task, n) for n in range(3)))
    with working(engine, registry, queues=EIGHT) as worker:
        assert paused.inside.wait(60)
        for run in services_of(worker).runs.all():
            run.batch.timeout_at = 0.0  # type: ignore[attr-defined]
        time_out(worker)
        wait_until(lambda: ends(engine, ids) == {JobStatus.COMPLETED})
        assert services_of(worker).all_slots["default"].stuck == 1
        paused.go.set()
        wait_until(lambda: services_of(worker).all_slots["default"].stuck == 0)
    assert [(job.attempt, job.rescues) for job in jobs(engine, ids)] == [(1, 1)] * 3
    assert entries(engine) == [0, 1, 2]


def test_a_worker_that_leaves_gives_the_jobs_of_a_batch_back(engine: Engine, registry: Registry) -> None:
    """The handler hears of it by `ctx.cancelled`, and none of its writes are kept."""
    paused = Paused(registry)
    paused.then = lambda ctx: wait_until(lambda: ctx.cancelled)
    ids = add(engine, *(enqueue(paused.task, n) for n in range(3)))
    with working(engine, registry, queues=EIGHT, grace=0.0):
        assert paused.inside.wait(60)
        paused.go.set()
    assert ends(engine, ids) == {JobStatus.QUEUED}
    assert [(job.attempt, job.rescues) for job in jobs(engine, ids)] == [(0, 1)] * 3
    assert entries(engine) == []


# ---- crashes, and several workers


def test_a_batch_whose_worker_is_killed_is_done_once_by_another(engine: Engine, url: str, tmp_path: Path) -> None:
    """`kill -9` when half of the rows are written: all jobs are rescued, and each row is there once."""
    from tests.support.batch_app import write

    ids = add(engine, *(enqueue(write, n) for n in range(40)))
    long_healthy(engine, 2.0)
    options = ("--app=tests.support.batch_app:registry", "--lease=2", "--queue=default=40")
    for _ in range(2):
        with start_command("work", *options, url=url, env={FOLDER: str(tmp_path)}) as worker:
            wait_until(lambda: worker.process.poll() is not None or ends(engine, ids) == {JobStatus.COMPLETED}, 60)
    assert (tmp_path / "effects").read_text().split("\n")[0] == "batch of 40"
    assert ends(engine, ids) == {JobStatus.COMPLETED}
    assert entries(engine) == list(range(40))
    assert {(job.attempt, job.rescues) for job in jobs(engine, ids)} == {(1, 1)}


def test_two_workers_share_the_batches_of_a_task(engine: Engine, registry: Registry) -> None:
    """Each job is written once, whichever worker has it."""
    write, calls = writer(registry, Batching(10))
    with working(engine, registry, queues={"default": 2}), working(engine, registry, queues={"default": 2}):
        ids = add(engine, *(enqueue(write, n) for n in range(200)))
        wait_until(lambda: ends(engine, ids) == {JobStatus.COMPLETED})
    assert entries(engine) == list(range(200))
    assert max(map(len, calls)) == 10


# ---- around the handler


def test_middleware_is_entered_once_for_a_batch_and_hears_of_the_end_of_each_job(
    engine: Engine, registry: Registry
) -> None:
    """`Attempt.jobs` lists the attempts of the jobs."""
    heard: list[Any] = []

    class Heard(Middleware):
        def around(self, attempt: Attempt) -> Any:
            heard.append(len(attempt.jobs))
            attempt.at_end(lambda outcome, error: heard.append(("batch", outcome)))
            for job in attempt.jobs:
                job.at_end(lambda outcome, error, job=job: heard.append((job.job_id, outcome)))  # type: ignore[misc]
            return super().around(attempt)

    @task(registry=registry, name="some", batch=Batching(500), max_attempts=1)
    def some(ctx: BatchContext, numbers: list[int]) -> None:
        ctx.fail(ctx.jobs[0], ValueError("no"))

    middleware = Heard()
    add_middleware(middleware)
    try:
        first, second = add(engine, enqueue(some, 1), enqueue(some, 2))
        drain(engine, registry, queues=EIGHT)
    finally:
        remove_middleware(middleware)
    assert heard == [2, (first, "failed"), (second, "completed"), ("batch", "completed")]


def test_values_are_injected_once_for_a_call(engine: Engine, registry: Registry) -> None:
    """A provider that takes the context of a job is refused: a batch has many."""

    @task(registry=registry, name="injected", batch=Batching(500))
    def injected(
        ctx: BatchContext, numbers: list[int], client: Annotated[list[int], Inject(one_client)] = INJECTED
    ) -> None:
        client.append(sum(numbers))

    ids = add(engine, enqueue(injected, 1), enqueue(injected, 2))
    drain(engine, registry, queues=EIGHT)
    assert ends(engine, ids) == {JobStatus.COMPLETED}
    assert CLIENTS == [[3]]

    def wrong(ctx: BatchContext, id: Annotated[int, Inject(of_a_job)] = INJECTED) -> None: ...

    with pytest.raises(TaskError, match="a provider takes the context of a job, and a batch has many jobs"):
        task(registry=Registry(), batch=Batching(5))(wrong).resolve()


def test_steps_and_waits_are_refused_by_name(engine: Engine, registry: Registry) -> None:
    """A batch has no steps of its own, and no single job."""
    said: list[str] = []

    @task(registry=registry, name="steps", batch=Batching(500))
    def steps(ctx: BatchContext, numbers: list[int]) -> None:
        for name in ("step", "wait_signal", "sleep_for", "step_session", "progress", "job_id"):
            try:
                getattr(ctx, name)
            except Exception as error:
                said.append(str(error))

    add_one(engine, enqueue(steps, 1))
    drain(engine, registry)
    assert [text.split(" is refused")[0] for text in said[:5]] == [
        "ctx.step", "ctx.wait_signal", "ctx.sleep_for", "ctx.step_session", "ctx.progress",
    ]  # fmt: skip
    assert said[5] == "a batch has several jobs: ctx.jobs[0].job_id, say"


def test_declarations_that_cannot_work_are_refused(registry: Registry) -> None:
    """By name, and with what to do."""
    with pytest.raises(TaskError, match=r'batch=\.\.\. and executor="process" exclude each other'):
        task(batch=Batching(5), executor="process")  # type: ignore[call-overload]
    with pytest.raises(TaskError, match="rescue=False exclude each other"):
        task(batch=Batching(5), rescue=False)  # type: ignore[call-overload]
    with pytest.raises(TaskError, match=r"batch must be Batching\(\.\.\.\), not 500"):
        task(batch=500)  # type: ignore[call-overload]
    for given, said in (
        ({"size": 0}, "size must be an integer from 1 to 5,000, not 0"),
        ({"size": 5, "wait": 90}, "wait must be at most 60 s, not 90 s"),
        ({"size": 5, "by": "a b"}, "by must be the name of an argument or an attribute, not 'a b'"),
    ):
        with pytest.raises(OptionError, match=said):
            Batching(**given)

    def plain(orders: list[int]) -> None: ...
    def of_one(ctx: JobContext, orders: list[int]) -> None: ...
    def no_list(ctx: BatchContext, orders: int) -> None: ...
    def default(ctx: BatchContext, orders: list[int] = []) -> None: ...  # noqa: B006
    async def colour(ctx: BatchContext, orders: list[int]) -> None: ...

    for handler, said in (
        (plain, "a batch handler takes a context first: write ctx: BatchContext"),
        (of_one, "its handler takes many jobs: annotate 'ctx' with BatchContext"),
        (no_list, "the parameter 'orders' of a batch handler must be annotated as a list"),
        (default, "must be a list without a default"),
        (colour, "an `async def` handler gets an AsyncBatchContext"),
    ):
        with pytest.raises(TaskError, match=said):
            task(registry=Registry(), batch=Batching(5))(handler).resolve()  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"a BatchContext is for @task\(batch=Batching\(\.\.\.\)\)"):
        task(registry=Registry())(no_list).resolve()

    def by(ctx: BatchContext, orders: list[Order]) -> None: ...

    with pytest.raises(TaskError, match=r"Batching\(by='customer'\) must name an argument, or a column"):
        task(registry=Registry(), batch=Batching(5, by="customer"))(by).resolve()
    taken = task(registry=registry, name="taken", batch=Batching(5))(by)
    with pytest.raises(TaskError, match="runs in batches, so its jobs take no results of other jobs"):
        taken.call_after(1, (), {})


# ---- in an application's own tests


def test_the_testing_kit_runs_batches(engine: Engine, registry: Registry) -> None:
    """In halves where they fail, and with the results of each job."""
    write, calls = writer(registry, Batching(500), max_attempts=1)

    @task(registry=registry, name="double", batch=Batching(500), record=True)
    async def double(ctx: AsyncBatchContext, numbers: list[int]) -> list[int]:
        assert (await ctx.session.scalars(text("SELECT 1"))).all() == [1]
        return [2 * n for n in numbers]

    with Session(engine) as session:
        session.add_all([*(enqueue(write, n) for n in (1, 2, -3)), *(enqueue(double, n) for n in range(3))])
        found = drain_in(session, registry=registry, raise_errors=False)
        assert calls == [[1, 2, -3], [1, 2], [-3]]
        assert found.outcomes == {"completed": 5, "failed": 1}
        assert [ran.result for ran in found if ran.task == "double"] == [0, 2, 4]
        assert sorted(session.scalars(select(Entry.n))) == [1, 2]
        job, other = enqueue(write, 7), enqueue(write, 8)
        session.add_all([job, other])
        session.flush()
        assert work_one(session, other, registry=registry).outcome == "completed"
        assert calls[-1] == [8]
        with pytest.raises(
            TaskError, match="check_replay is for handlers that may have steps, and 'write' runs in batches"
        ):
            check_replay(session, job, registry=registry)
        session.rollback()
