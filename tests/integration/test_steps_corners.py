"""Rare cases of durable steps: similar names, arguments and values, concurrent tasks, and waits that end in unusual ways."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, text

from sa_jobqueue import (
    AsyncJobContext,
    Failed,
    JobContext,
    JobStatus,
    Registry,
    RetryPolicy,
    Snooze,
    enqueue,
    task,
)
from sa_jobqueue.errors import JobSuspended, OptionError, PayloadError, StepError
from sa_jobqueue.worker.running import steps as runtime
from sa_jobqueue.worker.running.steps import Steps, digest_of, full_name
from tests.integration.test_steps import AGAIN, has_ended, is_blocked, send
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import add, add_one, cancel, drain, job_of, working


class Backwards(set[str]):
    """A set with the reverse order."""

    def __iter__(self) -> Any:
        return iter(sorted(set.__iter__(self), reverse=True))


class Tagged(BaseModel):
    tags: set[str]


@dataclass
class Charge:
    """A callable without a hash."""

    amounts: set[str]

    def __call__(self) -> int:
        return len(self.amounts)


def test_arguments_are_compared_and_not_changed() -> None:
    """Sets have no order, in models and dataclasses too. An iterator is not read. A list that contains itself and an invalid text raise no error."""
    for build in (lambda tags: Tagged.model_construct(tags=tags), Charge):
        assert digest_of((build({"a", "b"}),), {}) == digest_of((build(Backwards("ab")),), {})
        assert digest_of((build({"a"}),), {}) != digest_of((build({"b"}),), {})
    numbers = (n for n in range(3))
    digest_of((numbers,), {})
    assert list(numbers) == [0, 1, 2]
    loop: list[Any] = ["\ud800"]
    assert digest_of((loop,), {}) == digest_of(([*loop, loop],), {})


def test_no_name_is_that_of_another_step() -> None:
    """A name that ends in a number is not the full name of a later step."""
    names = [full_name(name, number) for name in ("a", "a#2", "a#2#1", "a#x") for number in (1, 2, 3)]
    assert len(set(names)) == len(names)
    assert names[:2] == ["a", "a#2"]
    assert "a#x" in names


def test_steps_keep_their_names_in_the_order_of_the_calls(engine: Engine, registry: Registry) -> None:
    """So do concurrent steps of one name, and a step whose name looks like the full name of a later step."""

    def same(value: Any) -> Any:
        return value

    @task(registry=registry, name="gather", retry=AGAIN, steps="fail", record=True)
    async def gather(ctx: AsyncJobContext) -> list[Any]:
        found = await asyncio.gather(*(ctx.step("s", same, n) for n in range(9)), ctx.step("s#2", same, "mine"))
        if ctx.attempt == 1:
            raise RuntimeError
        return [*found, await ctx.step("sum", sum, (n for n in range(3)))]

    job = add_one(engine, enqueue(gather))
    drain(engine, registry)
    assert job_of(engine, job).result == [*range(9), "mine", 3]


class Color(Enum):
    RED = "red"


class Nested(BaseModel):
    inner: dict[str, list[Color]]
    at: datetime


NESTED = Nested(inner={"a": [Color.RED]}, at=datetime(2026, 1, 1, tzinfo=UTC))
VALUES: list[tuple[Any, Any]] = [
    (None, None), (None, int | None), (NESTED, Nested), ([NESTED], list[Nested]), (b"\xff\x00", bytes), (Decimal("1.10"), Decimal),
    ({1, 2}, set[int]), ((1, "a"), tuple[int, str]), (Color.RED, Color | int), ("x" * 500_000, str), ("3", int | str), (3, int | str),
    (timedelta(seconds=3), timedelta),
]  # fmt: skip


def test_what_a_step_returns_is_the_same_when_it_is_read(engine: Engine, registry: Registry) -> None:
    """Its annotation decides, also for a closure and a callable object. A value that cannot be stored is refused each time."""
    seen: list[list[Any]] = []

    def giving(value: Any, hint: Any) -> Any:
        def give() -> Any:
            return value

        give.__annotations__["return"] = hint
        return give

    @task(registry=registry, name="values", retry=AGAIN)
    def values(ctx: JobContext) -> None:
        found = [ctx.step(f"v{n}", giving(value, hint)) for n, (value, hint) in enumerate(VALUES)]
        found.append(ctx.step("call", Charge({"a"})))
        for wrong in (float("nan"), values, "\ud800", "\0"):
            with pytest.raises(PayloadError):
                ctx.step("wrong", giving(wrong, Any))
        seen.append(found)
        if ctx.attempt == 1:
            raise RuntimeError

    add_one(engine, enqueue(values))
    drain(engine, registry)
    assert seen == [[*(value for value, _ in VALUES), 1]] * 2


def test_steps_of_other_tasks_are_recorded_although_a_handler_ends(engine: Engine, registry: Registry) -> None:
    """A step that runs on the loop or on a thread while another task waits or fails is not called again. A failure is not a wait."""
    calls: list[str] = []
    has_raised = {name: threading.Event() for name in ("group", "gather")}

    def slow(handler: str) -> None:
        assert has_raised[handler].wait(30)
        calls.append(f"{handler} slow")

    async def aslow(handler: str) -> None:
        await wait_until_async(has_raised[handler].is_set)
        calls.append(f"{handler} aslow")

    def fails() -> None:
        if "failed" not in calls:
            calls.append("failed")
            raise ValueError

    @task(registry=registry, name="group")
    async def group(ctx: AsyncJobContext) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ctx.step("slow", slow, "group"))
                tasks.create_task(ctx.step("aslow", aslow, "group"))
                tasks.create_task(ctx.sleep_for(0.01))
        finally:
            has_raised["group"].set()

    @task(registry=registry, name="gather", retry=AGAIN)
    async def gather(ctx: AsyncJobContext) -> None:
        try:
            await asyncio.gather(ctx.step("aslow", aslow, "gather"), ctx.step("fails", fails))
        finally:
            has_raised["gather"].set()

    @task(registry=registry, name="both", max_attempts=1)
    async def both(ctx: AsyncJobContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.wait_signal("never"))
            tasks.create_task(ctx.step("fails", "x".index, "y"))
            await asyncio.Event().wait()  # the group cancels it

    jobs = add(engine, enqueue(group), enqueue(gather), enqueue(both))
    with working(engine, registry):
        wait_until(has_ended(engine, *jobs[:2]))
        wait_until(lambda: job_of(engine, jobs[2]).status in {JobStatus.FAILED, JobStatus.BLOCKED})
    assert sorted(calls) == ["failed", "gather aslow", "group aslow", "group slow"]
    assert {job_of(engine, job).status for job in jobs[:2]} == {JobStatus.COMPLETED}


def test_no_step_begins_once_a_handler_waits(engine: Engine, registry: Registry) -> None:
    """No step begins in a `finally` either. A wait that the handler's own timeout gave up does not count."""
    calls: list[str] = []

    @task(registry=registry, name="loop")
    async def on_loop(ctx: AsyncJobContext) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await ctx.wait_signal("never")
        try:
            await ctx.wait_signal("go")
        finally:
            await ctx.step("release", calls.append, "loop")

    @task(registry=registry, name="thread")
    def on_thread(ctx: JobContext) -> None:
        try:
            ctx.wait_signal("go")
        finally:
            ctx.step("release", calls.append, "thread")

    jobs = add(engine, enqueue(on_loop), enqueue(on_thread))
    with working(engine, registry):
        wait_until(is_blocked(engine, *jobs))
        assert calls == []
        send(engine, "go")
        send(engine, "go")
        wait_until(has_ended(engine, *jobs))
    assert sorted(calls) == ["loop", "thread"]


def test_nothing_late_begins(engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler begins to wait, or fails, while another task reads the records: no block of a step's session begins there, and a signal
    stays for others.
    """
    is_late, begun, read = ContextVar("is_late", default=False), list[str](), Steps._read
    busy, marked, received = (threading.Event() for _ in range(3))

    def read_late(steps: Steps) -> None:
        read(steps)
        if is_late.get():
            wait_until(lambda: steps._ended or steps.suspension is not None)

    monkeypatch.setattr(Steps, "_read", read_late)

    async def mark(ctx: AsyncJobContext) -> None:
        is_late.set(True)
        try:
            async with ctx.step_session("mark"):
                begun.append("mark")
        finally:
            marked.set()

    async def receive(ctx: AsyncJobContext) -> None:
        is_late.set(True)
        try:
            begun.append(await ctx.wait_signal("gift"))
        finally:
            received.set()

    async def fail() -> None:
        await asyncio.to_thread(busy.wait, 30)
        raise RuntimeError

    def stay() -> None:
        busy.set()
        received.wait(30)

    @task(registry=registry, name="waits")
    async def waits(ctx: AsyncJobContext) -> None:
        await asyncio.gather(ctx.wait_signal("go"), mark(ctx))

    @task(registry=registry, name="fails", max_attempts=1)
    async def fails(ctx: AsyncJobContext) -> None:
        await asyncio.gather(receive(ctx), ctx.step("stay", stay), fail())

    send(engine, "gift", "mine")
    waiting, failing = add(engine, enqueue(waits), enqueue(fails))
    with working(url, registry):
        wait_until(is_blocked(engine, waiting))
        wait_until(has_ended(engine, failing))
        assert marked.wait(30)
    assert begun == []
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.signal")) == 1


@pytest.mark.parametrize("end", ["timeout", pytest.param("cancel", marks=pytest.mark.nightly)])
def test_a_step_that_hangs_does_not_outlive_its_job(engine: Engine, registry: Registry, end: str) -> None:
    """While another task waits, the job's timeout and its cancel still end the step."""
    begun = threading.Event()

    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    @task(registry=registry, name="hangs", max_attempts=1)
    async def waits(ctx: AsyncJobContext) -> None:
        await asyncio.gather(ctx.step("hangs", hangs), ctx.wait_signal("never"))

    waits.timeout = 0.3 if end == "timeout" else None
    job = add_one(engine, enqueue(waits))
    with working(engine, registry):
        assert begun.wait(30)
        if end == "cancel":
            cancel(engine, job)
        wait_until(has_ended(engine, job))
    assert job_of(engine, job).status is (JobStatus.FAILED if end == "timeout" else JobStatus.CANCELLED)


def signals_are_looked_for(engine: Engine) -> bool:
    """Whether workers have looked for the signals that were sent before the waits."""
    with engine.connect() as connection:
        return not connection.scalar(text("SELECT bool_or(is_new) FROM sa_jobqueue.wait"))


def test_a_signal_is_left_to_others_where_its_waiter_ended(engine: Engine, url: str, registry: Registry) -> None:
    """The waiting job ends before the signal is sent, or after it was put back for the signal."""
    taken: list[int] = []

    @task(registry=registry, name="take")
    def take(ctx: JobContext) -> None:
        ctx.wait_signal("go")
        taken.append(ctx.job_id)

    first, second, third = (add_one(engine, enqueue(take)) for _ in range(3))
    with working(url, registry, queues={"default": 1}):
        wait_until(is_blocked(engine, first, second, third))
        wait_until(lambda: signals_are_looked_for(engine))
    cancel(engine, first)
    send(engine, "go")
    resume = text("SELECT resumed FROM sa_jobqueue.resume_waiting(9)")
    with engine.begin() as connection:
        assert connection.scalar(resume) == 1
    cancel(engine, second)
    with engine.begin() as connection:
        assert connection.scalar(resume) is None
        connection.execute(text("UPDATE sa_jobqueue.signal SET look_at = look_at - interval '10 s'"))
        assert connection.scalar(resume) == 1
    drain(engine, registry)
    assert taken == [third]


def test_a_block_that_is_recorded_may_fail_when_it_runs_again(engine: Engine, url: str, registry: Registry) -> None:
    """A repeated block of `step_session` may not find its rows any more. In the block, the key is the step's, and no step may begin."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effect (n text)"))
        connection.execute(text("TRUNCATE effect"))
        connection.execute(text("INSERT INTO effect VALUES ('x')"))
    keys: list[str] = []
    delete = text("DELETE FROM effect RETURNING n")

    @task(registry=registry, name="thread", retry=AGAIN, max_attempts=2)
    def on_thread(ctx: JobContext) -> None:
        with ctx.step_session("mark") as session:
            keys.append(ctx.idempotency_key)
            session.execute(delete).scalar_one()
            with pytest.raises(StepError, match="inside step"):
                ctx.step("inner", str)
        if ctx.attempt == 1:
            raise RuntimeError

    @task(registry=registry, name="loop", retry=AGAIN, max_attempts=2)
    async def on_loop(ctx: AsyncJobContext) -> None:
        async with ctx.step_session("first") as session:
            await session.execute(text("INSERT INTO effect VALUES ('y')"))
        async with ctx.step_session("mark") as session:
            (await session.execute(text("DELETE FROM effect WHERE n = 'y' RETURNING n"))).scalar_one()
        keys.append(ctx.idempotency_key)
        if ctx.attempt == 1:
            raise RuntimeError

    first, second = add(engine, enqueue(on_thread), enqueue(on_loop))
    drain(url, registry)
    assert {job_of(engine, job).status for job in (first, second)} == {JobStatus.COMPLETED}
    assert set(keys) == {f"{first}:mark:1", f"{second}"}


def test_a_join_of_jobs_that_are_not_there_ends(engine: Engine, registry: Registry) -> None:
    """Missing jobs count as failed, with a reason. A job cannot wait for itself."""
    found: list[Any] = []

    @task(registry=registry, name="whole", max_attempts=1)
    def whole(ctx: JobContext) -> None:
        with pytest.raises(OptionError, match="its own end"):
            ctx.join([ctx.job_id])
        found.extend(ctx.join([999_999_999]))

    add_one(engine, enqueue(whole))
    drain(engine, registry)
    (gone,) = found
    assert isinstance(gone, Failed)
    assert "no such job" in gone.message


def test_a_job_that_waited_began_before_the_patch(engine: Engine, url: str, registry: Registry) -> None:
    """So it is not patched, although it has no recorded steps. Each call with the name of the patch gives the same answer."""
    answers: list[bool] = []
    is_new = threading.Event()

    @task(registry=registry, name="patched")
    def patched(ctx: JobContext) -> None:
        if is_new.is_set():
            answers.extend(ctx.patched("p") for _ in range(2))
        ctx.wait_signal("x" * 200)
        ctx.sleep_for(0.01)

    job = add_one(engine, enqueue(patched))
    with working(url, registry):
        wait_until(is_blocked(engine, job))
        is_new.set()
        send(engine, "x" * 200)
        wait_until(has_ended(engine, job))
    assert answers == [False] * 4


def test_a_job_has_a_bounded_number_of_steps(
    engine: Engine, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function of a step too many is not called, in concurrent tasks too."""
    monkeypatch.setattr(runtime, "MOST_STEPS", 3)
    calls: list[int] = []

    @task(registry=registry, name="many", max_attempts=1)
    async def many(ctx: AsyncJobContext) -> None:
        await ctx.step("s", calls.append, 0)
        await asyncio.gather(*(ctx.step("s", calls.append, n) for n in range(1, 5)))

    job = add_one(engine, enqueue(many))
    drain(engine, registry)
    assert "may not have more" in job_of(engine, job).errors[-1]["message"]
    assert sorted(calls) == [0, 1, 2]


def test_a_checkpoint_waits_for_a_locked_job(
    engine: Engine, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """It spends no attempt, although the lock outlasts the lock timeout of its statement. A Snooze in a step is not a failure, so the step is not retried."""
    locked, go = threading.Event(), threading.Event()
    calls: list[str] = []

    def snoozes() -> None:
        calls.append("")
        if len(calls) == 1:
            raise Snooze(0)

    @task(registry=registry, name="checkpoint", max_attempts=1)
    def checkpoint(ctx: JobContext) -> None:
        ctx.step("snoozes", snoozes, retry=RetryPolicy(base=60))
        locked.set()
        assert go.wait(30)
        ctx.step("b", str)

    job = add_one(engine, enqueue(checkpoint))
    with working(engine, registry):
        assert locked.wait(30)
        with engine.begin() as connection:
            connection.execute(text("SELECT FROM sa_jobqueue.job FOR UPDATE"))
            go.set()
            wait_until(lambda: "step 'b' cannot be recorded" in caplog.text)
        wait_until(has_ended(engine, job))
    assert job_of(engine, job).status is JobStatus.COMPLETED


@pytest.mark.nightly
def test_steps_of_many_jobs_block_threads_side_by_side(engine: Engine, registry: Registry) -> None:
    """There are more such steps than Python's own pool has threads."""
    barrier = threading.Barrier(20, timeout=30)

    @task(registry=registry, name="blocks", max_attempts=1)
    async def blocks(ctx: AsyncJobContext) -> None:
        await ctx.step("s", lambda: barrier.wait() and None)

    jobs = add(engine, *(enqueue(blocks) for _ in range(20)))
    drain(engine, registry, queues={"default": 20})
    assert {job_of(engine, job).status for job in jobs} == {JobStatus.COMPLETED}


@pytest.mark.nightly
def test_a_wait_that_cannot_be_written_fails_its_job(engine: Engine, registry: Registry) -> None:
    """The job is not tried again and again. A JobSuspended that the handler raises itself fails the job as well."""

    @task(registry=registry, name="fake", max_attempts=1)
    async def fake(ctx: AsyncJobContext) -> None:
        raise JobSuspended("by hand")

    @task(registry=registry, name="refused", max_attempts=1)
    def refused(ctx: JobContext) -> None:
        ctx.sleep_for(1)

    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE sa_jobqueue.wait ADD CONSTRAINT no_sleep CHECK (step <> 'sleep')"))
    try:
        jobs = add(engine, enqueue(fake), enqueue(refused))
        drain(engine, registry)
    finally:
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE sa_jobqueue.wait DROP CONSTRAINT no_sleep"))
    assert {job_of(engine, job).status for job in jobs} == {JobStatus.FAILED}
