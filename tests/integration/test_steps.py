"""Durable steps: recorded steps are not called again, and a job waits for signals, times and other jobs without a slot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AsyncJobContext,
    Failed,
    Job,
    JobContext,
    JobStatus,
    Limits,
    Registry,
    RetryPolicy,
    Signal,
    Workflow,
    enqueue,
    task,
)
from sa_jobqueue.errors import JobStopped, JobSuspended, OptionError, PayloadError, SignalTimeout, StepError
from sa_jobqueue.models import Step, Wait
from sa_jobqueue.statements import cancel_jobs, pause_workflows, resume_workflows
from sa_jobqueue.worker.running.steps import digest_of
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import add, add_one, drain, job_of, working

AGAIN = RetryPolicy(base=0, jitter=0)


class Approval(BaseModel):
    by: str


def send(engine: Engine, name: str, payload: object = None, **options: Any) -> None:
    with Session(engine) as session:
        session.add(Signal(name, payload, **options))
        session.commit()


def is_blocked(engine: Engine, *ids: int) -> Callable[[], bool]:
    return lambda: all(job_of(engine, job).status is JobStatus.BLOCKED for job in ids)


def has_ended(engine: Engine, *ids: int) -> Callable[[], bool]:
    return lambda: all(job_of(engine, job).is_finished for job in ids)


@pytest.fixture
def effect(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effect (n text)"))
        connection.execute(text("TRUNCATE effect"))


def test_a_recorded_step_is_not_called_again(engine: Engine, registry: Registry) -> None:
    """A later attempt gets its recorded result. So does an awaited step, and each of several steps of one name."""
    calls: list[str] = []

    def label(number: int) -> str:
        calls.append(f"label {number}")
        return f"L{number}"

    async def book(label: str) -> dict[str, int]:
        calls.append(f"book {label}")
        return {"place": 7}

    @task(registry=registry, name="ship", retry=AGAIN, record=True)
    async def ship(ctx: AsyncJobContext) -> list[Any]:
        found = [await ctx.step("label", label, number) for number in (1, 2)]
        booked = await ctx.step("book", book, found[1])
        if ctx.attempt == 1:
            raise RuntimeError("on purpose")
        return [*found, booked]

    job = add_one(engine, enqueue(ship))
    drain(engine, registry)

    assert job_of(engine, job).result == ["L1", "L2", {"place": 7}]
    assert calls == ["label 1", "label 2", "book L2"]
    with Session(engine) as session:
        assert set(session.scalars(select(Step.name))) == {"label", "label#2", "book"}


def test_steps_of_a_thread_wait_for_a_signal_and_sleep(engine: Engine, url: str, registry: Registry) -> None:
    """The job is blocked while it waits. A wait spends no attempt, and happens once."""
    seen: list[Any] = []

    @task(registry=registry, name="approve")
    def approve(ctx: JobContext) -> None:
        approval = ctx.wait_signal("order:1:approve", Approval, timeout=timedelta(days=3))
        ctx.sleep_for(0.1)
        ctx.sleep_until(datetime.now(UTC) - timedelta(days=1))
        seen.append((approval, ctx.attempt))

    job = add_one(engine, enqueue(approve))
    with working(url, registry, queues={"default": 1}):
        wait_until(is_blocked(engine, job))
        assert job_of(engine, job).attempt == 0
        send(engine, "order:1:approve", Approval(by="ann"))
        wait_until(has_ended(engine, job))

    assert seen == [(Approval(by="ann"), 1)]
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Wait)) == 0
        assert session.scalar(select(func.count()).select_from(Signal)) == 0


def test_a_signal_is_kept_until_it_is_taken_and_by_one_alone(engine: Engine, url: str, registry: Registry) -> None:
    """Of three jobs, two take the signals that were sent before, the oldest first. An expired signal is not taken."""
    taken: list[Any] = []

    @task(registry=registry, name="take")
    async def take(ctx: AsyncJobContext) -> None:
        taken.append(await ctx.wait_signal("go"))

    send(engine, "go", 0)
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.signal SET expires_at = now()"))
    send(engine, "go", 1)
    send(engine, "go", 2, expires_in=timedelta(minutes=1))
    jobs = add(engine, enqueue(take), enqueue(take), enqueue(take))
    with working(url, registry, queues={"default": 3}):
        wait_until(lambda: len(taken) == 2)
        wait_until(lambda: sum(job_of(engine, job).status is JobStatus.BLOCKED for job in jobs) == 1)

    assert sorted(taken) == [1, 2]


def test_a_wait_without_an_answer_times_out(engine: Engine, registry: Registry) -> None:
    """The database's clock counts from the beginning of the wait, however often the handler runs again."""
    raised: list[str] = []

    @task(registry=registry, name="ask")
    def ask(ctx: JobContext) -> None:
        with suppress(SignalTimeout):
            ctx.wait_signal("answer", timeout=0.2)
        try:
            ctx.wait_signal("answer", timeout=0.2)
        except TimeoutError as error:
            raised.append(str(error))

    job = add_one(engine, enqueue(ask))
    with working(engine, registry):
        wait_until(has_ended(engine, job))
    assert raised == [f"job {job}: no signal 'answer' has come in time"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_signal_is_part_of_its_senders_transaction(engine: Engine, url: str, registry: Registry, level: str) -> None:
    """A handler gets it after the commit, at each isolation level, and not after a rollback."""
    taken: list[Any] = []

    @task(registry=registry, name="take")
    def take(ctx: JobContext) -> None:
        taken.append(ctx.wait_signal("go"))

    job = add_one(engine, enqueue(take))
    with Session(engine.execution_options(isolation_level=level)) as early, working(url, registry):
        early.execute(select(Job.id))  # its snapshot is older than the wait
        wait_until(is_blocked(engine, job))
        early.add(Signal("go", "rolled back"))
        early.flush()
        early.rollback()
        early.add(Signal("go", "committed"))
        early.commit()
        wait_until(has_ended(engine, job))
    assert taken == ["committed"]


def test_what_a_handler_writes_at_a_wait_rolls_back_but_for_a_steps_session(
    engine: Engine, url: str, registry: Registry, effect: None
) -> None:
    """A step's session commits with its record, once; `ctx.session` commits once, with the completion."""

    @task(registry=registry, name="write")
    async def write(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("INSERT INTO effect VALUES ('at the end')"))
        async with ctx.step_session("mark") as session:
            await session.execute(text("INSERT INTO effect VALUES ('in the step')"))
        await ctx.wait_signal("go")

    @task(registry=registry, name="write in a thread")
    def write_in_thread(ctx: JobContext) -> None:
        ctx.session.execute(text("INSERT INTO effect VALUES ('at the end')"))
        with ctx.step_session("mark") as session:
            session.execute(text("INSERT INTO effect VALUES ('in the step')"))
        ctx.wait_signal("go")

    def effects() -> list[str]:
        with engine.connect() as connection:
            return sorted(connection.scalars(text("SELECT n FROM effect")))

    jobs = add(engine, enqueue(write), enqueue(write_in_thread))
    with working(url, registry):
        wait_until(is_blocked(engine, *jobs))
        assert effects() == ["in the step"] * 2
        send(engine, "go")
        send(engine, "go")
        wait_until(has_ended(engine, *jobs))
    assert effects() == ["at the end"] * 2 + ["in the step"] * 2


def test_a_step_of_a_claim_that_is_over_is_not_recorded(
    engine: Engine, registry: Registry, effect: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The writes of its session are not kept either. The log says that the claim was lost, and not that an attempt failed."""
    errors: list[BaseException] = []

    @task(registry=registry, name="stale")
    def stale(ctx: JobContext) -> None:
        ctx.step("first", str)
        with engine.begin() as connection:
            connection.execute(text("UPDATE sa_jobqueue.job SET claim_token = claim_token + 1"))
        try:
            with ctx.step_session("second") as session:
                session.execute(text("INSERT INTO effect VALUES ('stale')"))
        except JobStopped as error:
            errors.append(error)
        ctx.step("third", str)

    add_one(engine, enqueue(stale))
    with working(engine, registry):
        wait_until(lambda: errors)
    assert "its claim was lost; step 'third' is not recorded" in caplog.text
    assert "failed in attempt" not in caplog.text
    with Session(engine) as session:
        assert list(session.scalars(select(Step.name))) == ["first"]
        assert session.scalar(text("SELECT count(*) FROM effect")) == 0


def test_a_waiting_job_holds_no_permit(engine: Engine, url: str, registry: Registry) -> None:
    """In a queue that runs one job at a time, the next job runs while the first one waits."""
    registry.queue("narrow", limits=Limits(running=1))

    @task(registry=registry, name="wait", queue="narrow")
    async def wait(ctx: AsyncJobContext) -> None:
        await ctx.wait_signal("go")

    @task(registry=registry, name="quick", queue="narrow")
    async def quick() -> None: ...

    first, second = add(engine, enqueue(wait), enqueue(quick))
    with working(url, registry, queues={"narrow": 4}):
        wait_until(has_ended(engine, second))
        assert job_of(engine, first).status is JobStatus.BLOCKED


def test_a_waiting_job_can_be_cancelled(engine: Engine, registry: Registry) -> None:
    """Its deadline holds as well."""

    @task(registry=registry, name="wait")
    def wait(ctx: JobContext) -> None:
        ctx.wait_signal("never")

    cancelled, late = add(engine, enqueue(wait), enqueue(wait.options(deadline=1.0)))
    with working(engine, registry):
        wait_until(is_blocked(engine, cancelled))
        with Session(engine) as session:
            session.execute(cancel_jobs(Job.id == cancelled))
            session.commit()
        wait_until(has_ended(engine, cancelled, late))
    assert [job_of(engine, job).status for job in (cancelled, late)] == [JobStatus.CANCELLED, JobStatus.FAILED]
    assert job_of(engine, late).errors[0]["message"] == "its deadline was over while it waited"


def test_a_member_of_a_paused_workflow_does_not_go_on(engine: Engine, url: str, registry: Registry) -> None:
    """A signal that comes during the pause is taken when the workflow goes on."""

    @task(registry=registry, name="wait")
    def wait(ctx: JobContext) -> None:
        ctx.wait_signal("go")

    with Session(engine) as session:
        workflow = Workflow("w")
        workflow.add(wait)
        session.add(workflow)
        session.commit()
        number = workflow.id
        job = session.scalar(select(Job.id))
    assert job is not None
    with working(url, registry):
        wait_until(is_blocked(engine, job))
        with Session(engine) as session:
            session.execute(pause_workflows(number))
            session.commit()
        send(engine, "go")
        wait_until(lambda: job_of(engine, job).blocked_by == -number)
        with Session(engine) as session:
            session.execute(resume_workflows(number))
            session.commit()
        wait_until(has_ended(engine, job))


def test_steps_of_a_gather_are_recorded_although_one_of_them_waits(engine: Engine, registry: Registry) -> None:
    """The other steps end first. With a TaskGroup, too, the job waits and does not fail."""
    calls: list[str] = []
    has_raised = threading.Event()

    async def slow(name: str) -> str:
        await wait_until_async(has_raised.is_set)
        calls.append(name)
        return name

    @task(registry=registry, name="several", record=True)
    async def several(ctx: AsyncJobContext) -> list[Any]:
        try:
            found: list[Any] = await asyncio.gather(
                ctx.step("a", slow, "a"), ctx.sleep_for(0.1), ctx.step("b", slow, "b")
            )
        finally:
            has_raised.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep_for(0.1))
        return found

    job = add_one(engine, enqueue(several))
    with working(engine, registry):
        wait_until(has_ended(engine, job))
    assert job_of(engine, job).result == ["a", None, "b"]
    assert sorted(calls) == ["a", "b"]


def test_a_job_waits_for_other_jobs(engine: Engine, registry: Registry) -> None:
    """It gets their results, with `Failed` for the job that failed."""

    @task(registry=registry, name="part", record=True, max_attempts=1)
    def part(number: int) -> int:
        if number == 2:
            raise ValueError("two")
        return number * 10

    @task(registry=registry, name="whole")
    def whole(ctx: JobContext) -> None:
        def enqueue_parts() -> list[int]:
            return add(engine, *(enqueue(part, number) for number in (1, 2, 3)))

        results.append(ctx.join(ctx.step("parts", enqueue_parts)))

    results: list[list[Any]] = []
    job = add_one(engine, enqueue(whole))
    with working(engine, registry):
        wait_until(has_ended(engine, job))
    ((one, two, three),) = results
    assert (one, three) == (10, 30)
    assert isinstance(two, Failed)
    assert two.message == "two"


@pytest.mark.parametrize("policy", ["warn", "fail", "hold"])
def test_other_arguments_than_those_that_were_recorded(engine: Engine, registry: Registry, policy: Any) -> None:
    """The task's policy decides what happens. A higher revision runs the step again."""
    calls: list[Any] = []

    def note(value: int) -> int:
        calls.append(value)
        return value

    @task(registry=registry, name="changed", retry=AGAIN, max_attempts=2, steps=policy, record=True)
    def changed(ctx: JobContext) -> int:
        ctx.step("old", note, ctx.attempt, revision=ctx.attempt)
        value = ctx.step("value", note, ctx.attempt * 10)
        if ctx.attempt == 1:
            raise RuntimeError("on purpose")
        return value

    job = add_one(engine, enqueue(changed))
    drain(engine, registry)

    ended = job_of(engine, job)
    assert calls == [1, 10, 2]
    assert ended.status is {"warn": JobStatus.COMPLETED, "fail": JobStatus.FAILED, "hold": JobStatus.BLOCKED}[policy]
    if policy == "warn":
        assert ended.result == 10


def test_a_patch_is_for_jobs_that_begin_after_it(engine: Engine, registry: Registry) -> None:
    """A job that has already passed the place of the patch goes on without it. The answer for a job does not change later."""
    answers: list[tuple[int, int, bool]] = []

    @task(registry=registry, name="patched", retry=AGAIN)
    def patched(ctx: JobContext, is_patched: int) -> None:
        """The code is patched from this attempt on."""
        ctx.step("first", str)
        if ctx.attempt >= is_patched:
            answers.append((ctx.job_id, ctx.attempt, ctx.patched("new")))
        ctx.step("second", str)
        if ctx.attempt < 3:
            raise RuntimeError("on purpose")

    old, new = add(engine, enqueue(patched, 2), enqueue(patched, 1))
    drain(engine, registry)
    assert sorted(answers) == [(old, 2, False), (old, 3, False), (new, 1, True), (new, 2, True), (new, 3, True)]
    with Session(engine) as session:
        assert session.scalars(select(Step.name).where(Step.unused_by.is_not(None))).all() == []


def test_a_job_that_waited_before_the_place_of_a_patch_is_patched(engine: Engine, url: str, registry: Registry) -> None:
    """It reaches that place for the first time after its wait, and stays patched."""
    answers: list[bool] = []

    @task(registry=registry, name="waits first")
    def waits_first(ctx: JobContext) -> None:
        ctx.step("first", str)
        ctx.wait_signal("go")
        answers.append(ctx.patched("new"))
        ctx.sleep_for(0.01)

    job = add_one(engine, enqueue(waits_first))
    with working(url, registry):
        wait_until(lambda: job_of(engine, job).status is JobStatus.BLOCKED)
        send(engine, "go")
        wait_until(lambda: job_of(engine, job).is_finished)
    assert answers == [True, True]


def test_a_failed_step_is_tried_again_in_place(engine: Engine, registry: Registry) -> None:
    """It is tried within the lease; without `retry` the attempt fails."""
    calls: list[int] = []

    def shaky() -> int:
        calls.append(len(calls))
        if len(calls) < 3:
            raise ConnectionError("away")
        return len(calls)

    @task(registry=registry, name="shaky", record=True, max_attempts=1)
    async def job(ctx: AsyncJobContext) -> int:
        return await ctx.step("shaky", shaky, retry=RetryPolicy(base=0.01))

    number = add_one(engine, enqueue(job))
    drain(engine, registry)
    assert job_of(engine, number).result == 3


def test_wrong_uses_of_steps_say_what_to_do(engine: Engine, registry: Registry) -> None:
    """Wrong uses are a step inside a step, a caught suspension, and invalid names and values."""
    messages: list[str] = []

    @task(registry=registry, name="nested", max_attempts=1)
    def nested(ctx: JobContext) -> None:
        for wrong in (
            lambda: ctx.step("outer", lambda: ctx.step("inner", str)),
            lambda: ctx.step("", str),
            lambda: ctx.step("thing", object),
            lambda: ctx.sleep_until(datetime(2026, 1, 1)),  # noqa: DTZ001
            lambda: ctx.join([enqueue(nested)]),
        ):
            with pytest.raises((StepError, OptionError, PayloadError)) as caught:
                wrong()
            messages.append(str(caught.value))

    @task(registry=registry, name="swallows", max_attempts=1)
    def swallows(ctx: JobContext) -> None:
        with suppress(JobSuspended):
            ctx.wait_signal("never")

    _, second = add(engine, enqueue(nested), enqueue(swallows))
    drain(engine, registry)
    for message, expected in zip(
        messages,
        [
            "inside step 'outer'",
            "1 to 200",
            "task 'nested', step 'thing': its result",
            "with its zone",
            "flush the session",
        ],
        strict=True,
    ):
        assert expected in message
    assert job_of(engine, second).errors[-1]["type"].endswith("StepError")
    with pytest.raises(OptionError, match="signal"):
        Signal("x" * 201)
    with pytest.raises(PayloadError, match="its payload"):
        Signal("x", object())


def test_a_digest_is_the_same_in_every_process() -> None:
    """The order of sets and mappings does not matter. A value without JSON counts as its class."""
    assert digest_of(({"b", "a"},), {"x": {"k": 1, "j": 2}}) == digest_of(({"a", "b"},), {"x": {"j": 2, "k": 1}})
    assert digest_of((object(),), {}) == digest_of((object(),), {})
    assert digest_of((1,), {}) != digest_of((2,), {})


def test_the_key_of_a_step_is_the_same_whenever_it_runs(engine: Engine, registry: Registry) -> None:
    """ "JOB:STEP:OCCURRENCE" in a step, and the job's id outside steps."""
    keys: list[str] = []

    @task(registry=registry, name="keys")
    async def keyed(ctx: AsyncJobContext) -> None:
        for _ in range(2):
            await ctx.step("charge", lambda: keys.append(ctx.idempotency_key))
        keys.append(ctx.idempotency_key)

    job = add_one(engine, enqueue(keyed))
    drain(engine, registry)
    assert keys == [f"{job}:charge:1", f"{job}:charge:2", f"{job}"]


def test_steps_work_in_a_child_process(engine: Engine, url: str, tmp_path: Any) -> None:
    """The child records them, and the job waits as in the worker's process."""
    job = add_one(engine, enqueue(in_child))
    with working(url, children, lease=30.0):
        wait_until(is_blocked(engine, job), 60)
        send(engine, "child", "hello")
        wait_until(has_ended(engine, job), 60)
    assert job_of(engine, job).result == ["recorded", "hello"]


children = Registry()


def recorded() -> str:
    return "recorded"


@task(registry=children, name="in a child", executor="process", record=True)
def in_child(ctx: JobContext) -> list[str]:
    return [ctx.step("first", recorded), ctx.wait_signal("child", str)]
