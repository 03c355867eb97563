"""Waiting jobs together with limits, unique keys, workflows, other schemas and several workers."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AsyncJobContext,
    Job,
    JobContext,
    JobStatus,
    KeyLimits,
    Limits,
    Registry,
    Signal,
    Unique,
    Workflow,
    enqueue,
    task,
)
from sa_jobqueue.errors import SignalTimeout
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.models import Step, Wait
from sa_jobqueue.sql.steps import Recorded
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import cancel_workflows, send_signal
from tests.integration.test_steps import AGAIN, has_ended, is_blocked, send
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, job_of, working


def test_workers_that_look_at_once_put_different_jobs_back(engine: Engine, registry: Registry) -> None:
    """With several signals of one name and several workers, each signal puts a job back."""

    @task(registry=registry, name="wait")
    async def wait(ctx: AsyncJobContext) -> None:
        await ctx.wait_signal("go")

    jobs = add(engine, *(enqueue(wait) for _ in range(9)))
    drain(engine, registry)
    with Session(engine) as session:
        session.add_all([Signal("go") for _ in range(9)])
        session.commit()
    resume = text("SELECT resumed FROM sa_jobqueue.resume_waiting(3)")
    found: list[int] = []

    def look() -> None:
        with engine.begin() as connection:
            found.append(connection.scalar(resume))

    with engine.connect() as first, first.begin():
        found.append(first.scalar(resume))
        others = [threading.Thread(target=look) for _ in range(2)]
        for other in others:
            other.start()
        held = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            wait_until(lambda: connection.scalar(held))
    for other in others:
        other.join()
    assert found == [3] * 3
    drain(engine, registry)
    assert has_ended(engine, *jobs)()


def test_a_wait_keeps_its_end_when_its_job_looks_in_vain(engine: Engine, url: str, registry: Registry) -> None:
    """The job was put back for a signal that another job took. A run whose claim is over cannot end the wait of the next run either."""

    @task(registry=registry, name="wait")
    async def wait(ctx: AsyncJobContext) -> None:
        await ctx.wait_signal("go", timeout=3_600)

    job = add_one(engine, enqueue(wait))
    drain(url, registry)
    with Session(engine) as session:
        before = session.execute(select(Wait.since, Wait.until)).one()
        session.execute(text("UPDATE sa_jobqueue.wait SET due_at = now()"))
        session.commit()
        session.execute(text("SELECT FROM sa_jobqueue.resume_waiting(9)"))
        session.commit()
    drain(url, registry)
    assert job_of(engine, job).claims == 2
    with engine.begin() as connection:
        assert default_store.take_signal(connection, job, 1, step="signal:go", signal="go") is None
        stale = Recorded("signal:go", "timeout", 1, None, None, is_ours=True)
        assert not default_store.record_step(connection, job, 1, stale)
    with Session(engine) as session:
        assert session.execute(select(Wait.since, Wait.until)).one() == before


@pytest.mark.nightly
def test_a_signal_that_comes_with_the_timeout_is_taken_or_left(engine: Engine, url: str, registry: Registry) -> None:
    """It is never both, at each isolation level of the sender, with two workers and with senders that roll back."""
    ends: dict[int, str] = {}

    @task(registry=registry, name="race")
    async def race(ctx: AsyncJobContext, number: int) -> None:
        try:
            await ctx.wait_signal(f"go:{number}", timeout=3_600)
            end = "signal"
        except SignalTimeout:
            end = "timeout"
        assert ends.setdefault(number, end) == end
        await ctx.sleep_for(0.05)

    def sends(part: int, level: str) -> None:
        own, chance = engine.execution_options(isolation_level=level), random.Random(part)
        for number in range(part, 150, 3):
            with engine.begin() as connection:
                connection.execute(time_out, {"ids": jobs[number : number + 30 : 3]})
            with Session(own) as session:
                session.add(Signal(f"go:{number}"))
                session.flush()
                if chance.random() < 0.2:
                    session.rollback()
                else:
                    session.commit()
                    sent.append(number)

    sent: list[int] = []
    # Ends the waits of a job and of the next jobs. The signal for the first job makes the workers look at all of these waits.
    time_out = text("UPDATE sa_jobqueue.wait SET until = now(), due_at = now() WHERE job_id = ANY (:ids)")
    jobs = add(engine, *(enqueue(race, number) for number in range(150)))
    queues = {"default": 20}
    with working(url, registry, queues=queues), working(url, registry, queues=queues):
        wait_until(is_blocked(engine, *jobs))
        levels = enumerate(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
        threads = [threading.Thread(target=sends, args=given) for given in levels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(has_ended(engine, *jobs))
    with Session(engine) as session:
        left = set(session.scalars(select(Signal.name)))
        assert session.scalar(select(func.count()).select_from(Wait)) == 0
    assert {job_of(engine, job).status for job in jobs} == {JobStatus.COMPLETED}
    taken = {number for number in sent if f"go:{number}" not in left}
    assert {number for number, end in ends.items() if end == "signal"} == taken
    assert 0 < len(taken) < len(ends)


@pytest.mark.nightly
def test_limits_and_keys_see_a_waiting_job_as_begun(engine: Engine, url: str, registry: Registry) -> None:
    """It does not expire, keeps its unique key, is not dropped by `max_waiting`, and does not hold a strict key while it waits."""
    limits = Limits(per_key=KeyLimits(running=1), strict=True, max_waiting=0, when_full="drop_newest")
    registry.queue("narrow", limits=limits)
    go = threading.Event()

    @task(registry=registry, name="wait", queue="narrow", unique=Unique("once", scope="started"))
    def wait(ctx: JobContext) -> None:
        ctx.wait_signal("go")

    @task(registry=registry, name="other", queue="narrow")
    def other() -> None:
        assert go.wait(60)

    job = add_one(engine, enqueue(wait.options(expires_in=60, key="k")))
    with working(url, registry, queues={"narrow": 4}):
        wait_until(is_blocked(engine, job))
        duplicate, next_of_key = add(engine, enqueue(wait), enqueue(other.options(key="k")))
        assert job_of(engine, duplicate).status is JobStatus.CANCELLED
        wait_until(lambda: job_of(engine, next_of_key).status is JobStatus.RUNNING)
        send(engine, "go")
        wait_until(lambda: job_of(engine, job).status is JobStatus.QUEUED)
        assert job_of(engine, job).expires_at is None
        go.set()
        wait_until(has_ended(engine, job, next_of_key))
    assert job_of(engine, job).status is JobStatus.COMPLETED


@pytest.mark.nightly
def test_members_of_a_workflow_wait(engine: Engine, url: str, registry: Registry) -> None:
    """A child is released by the end of its parent, not by its wait; a cancel of the workflow ends both."""
    seen: list[int] = []

    @task(registry=registry, name="parent", record=True)
    def parent(ctx: JobContext) -> int:
        return int(ctx.wait_signal("go", int))

    @task(registry=registry, name="child")
    def child(number: int) -> None:
        seen.append(number)

    with Session(engine) as session:
        flows = [Workflow("kept"), Workflow("cancelled")]
        for flow in flows:
            flow.then(flow.add(parent), child)
        session.add_all(flows)
        session.commit()
        cancelled = flows[1].id
        parents, children = (
            session.scalars(select(Job.id).where(Job.task == name).order_by(Job.id)).all()
            for name in ("parent", "child")
        )
    with working(url, registry):
        wait_until(is_blocked(engine, *parents))
        assert is_blocked(engine, *children)()
        with Session(engine) as session:
            session.execute(cancel_workflows(cancelled))
            session.commit()
        wait_until(has_ended(engine, parents[1], children[1]))
        send(engine, "go", 5)
        wait_until(has_ended(engine, children[0]))
    assert seen == [5]
    assert job_of(engine, parents[1]).status is JobStatus.CANCELLED


@pytest.mark.nightly
def test_steps_and_waits_are_in_the_schema_of_their_jobs(empty_database_url: str, registry: Registry) -> None:
    """The engine translates the name of the schema."""
    moved = create_engine(empty_database_url, execution_options={"schema_translate_map": {"sa_jobqueue": "My Jobs"}})
    upgrade_database(moved, schema="My Jobs")

    @task(registry=registry, name="on a thread", record=True)
    def on_thread(ctx: JobContext) -> Any:
        with ctx.step_session("send") as session:
            session.add(Signal("first", 1))
        return [ctx.wait_signal("first"), ctx.wait_signal("second")]

    job = add_one(moved, enqueue(on_thread))
    with working(moved, registry):
        wait_until(is_blocked(moved, job))
        with Session(moved) as session:
            session.execute(send_signal("second", 2))
            session.commit()
        wait_until(has_ended(moved, job))
    assert job_of(moved, job).result == [1, 2]
    moved.dispose()


children = Registry()


def note(place: str, name: str) -> None:
    with Path(place).open("a") as file:
        file.write(f"{name}\n")


@task(registry=children, name="dies", executor="process", record=True, retry=AGAIN, timeout=3.0)
def dies(ctx: JobContext, place: str) -> str:
    """Its process dies once after a step, and once it exceeds its timeout in a step."""
    said = Path(place).read_text() if Path(place).exists() else ""
    ctx.step("first", note, place, "first")
    if "dies" not in said:
        note(place, "dies")
        os.kill(os.getpid(), signal.SIGKILL)
    if "hangs" not in said:
        ctx.step("second", hang, place)
    with ctx.step_session("sent") as session:
        session.add(Signal("mine", "sent"))
    return str(ctx.wait_signal("mine", str))


def hang(place: str) -> None:
    note(place, "hangs")
    threading.Event().wait()


@pytest.mark.nightly
def test_a_step_in_a_child_process_outlives_the_process(engine: Engine, url: str, tmp_path: Path) -> None:
    """The process is killed between two steps, and in a step by the job's timeout."""
    place = tmp_path / "said"
    job = add_one(engine, enqueue(dies, str(place)))
    with working(url, children):
        wait_until(has_ended(engine, job), 90)
    assert job_of(engine, job).result == "sent"
    assert place.read_text().split() == ["first", "dies", "hangs"]
    with Session(engine) as session:
        names = set(session.scalars(select(Step.name)))
    assert names == {"first", "sent", "signal:mine"}
