"""The repair of jobs with steps: a fork from a step, the retry of a held job, and records that are deleted with their job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArchivedJob,
    Job,
    JobContext,
    JobStatus,
    Registry,
    RetryPolicy,
    Signal,
    Unique,
    Workflow,
    enqueue,
    explain_job,
    task,
)
from sa_jobqueue.doctor.examine import CHECKS, examine
from sa_jobqueue.health.one_job import read_steps
from sa_jobqueue.models import Step, Wait, WorkflowRow
from sa_jobqueue.sql.store import Store
from sa_jobqueue.statements import cancel_jobs, discard_jobs, fork_job, job_steps, prune_jobs, retry_jobs
from tests.support.waiting import wait_until
from tests.support.working import add_one, drain, job_of, working

AGAIN = RetryPolicy(base=0, jitter=0)


def run(engine: Engine, statement: Any) -> Any:
    with engine.begin() as connection:
        found = connection.execute(statement)
        return found.all() if found.returns_rows else None


def explain_job_in(engine: Engine, job: int) -> str:
    with engine.connect() as connection:
        return str(explain_job(connection, job).reasons[0])


def test_a_fork_repeats_the_steps_from_one_on(engine: Engine, registry: Registry) -> None:
    """Earlier steps, in the order in which they ended, return their recorded results. The old job does not change."""
    calls: list[str] = []

    @task(registry=registry, name="ship", record=True, unique=Unique(), max_attempts=1)
    def ship(ctx: JobContext, order: int) -> list[str]:
        def note(name: str) -> str:
            calls.append(name)
            return f"{name} {len(calls)}"

        return [ctx.step(name, note, name) for name in ("z label", "book", "a mail", "book")]

    job = add_one(engine, enqueue(ship, 7))
    drain(engine, registry)
    before = run(engine, job_steps(job))
    ((fork,),) = run(engine, fork_job(job, from_step="a mail"))
    assert [row.name for row in run(engine, job_steps(fork))] == ["z label", "book"]
    with engine.begin() as connection:
        Store(Job).drop_stray_notes(connection)
    drain(engine, registry)

    assert calls == ["z label", "book", "a mail", "book", "a mail", "book"]
    assert job_of(engine, fork).result == ["z label 1", "book 2", "a mail 5", "book 6"]
    assert (job_of(engine, fork).args, job_of(engine, fork).unique_key) == ({"order": 7}, None)
    assert run(engine, job_steps(job)) == before
    assert [row.name for row in before] == ["z label", "book", "a mail", "book#2"]


def test_a_fork_that_cannot_be_made_says_why(engine: Engine, registry: Registry) -> None:
    """The reason names the job or its steps, and nothing is inserted."""

    @task(registry=registry, name="ship")
    def ship(ctx: JobContext) -> None:
        ctx.step("label", str)
        ctx.step("book", str)

    job = add_one(engine, enqueue(ship))
    wrong = {job: "is queued", job + 1: f"there is no job {job + 1}"}
    for id, message in wrong.items():
        with pytest.raises(DBAPIError, match=message):
            run(engine, fork_job(id, from_step="book"))
    drain(engine, registry)
    with pytest.raises(DBAPIError, match="has no step 'bok', but label, book"):
        run(engine, fork_job(job, from_step="bok"))
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 1


@pytest.mark.parametrize("member", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_job_that_is_held_goes_on_with_its_record_when_it_is_retried(
    engine: Engine, registry: Registry, member: bool
) -> None:
    """Two steps may differ. The wait is deleted. A member of a workflow goes back into its workflow."""
    calls: list[str] = []

    @task(registry=registry, name="changed", retry=AGAIN, steps="hold", record=True)
    def changed(ctx: JobContext) -> list[str]:
        def note(value: str) -> str:
            calls.append(value)
            return value

        found = [ctx.step(name, note, f"{name} {min(len(calls), 2)}") for name in ("a", "b", "c")]
        if ctx.attempt == 1:
            raise RuntimeError("on purpose")
        return found

    if member:
        flow = Workflow("w")
        flow.add(changed)
        with Session(engine) as session:
            session.add(flow)
            session.commit()
            job = session.scalars(select(Job.id)).one()
    else:
        job = add_one(engine, enqueue(changed))
    drain(engine, registry)
    for held in ("a", "b"):
        with Session(engine) as session:
            assert session.scalars(select(Wait.step)).all() == [held]
        found = explain_job_in(engine, job)
        assert found == f"is held: the arguments of step {held} differ from its record"
        (finding,) = examine(engine, checks=[check for check in CHECKS if check.name == "workflows"])
        assert f"job {job} at step {held}" in finding.detail
        assert run(engine, retry_jobs(Job.id == job)) == [(job,)]
        drain(engine, registry)
    assert job_of(engine, job).result == calls == ["a 0", "b 1", "c 2"]
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Wait)) == 0


def test_a_job_that_has_ended_waits_for_nothing(engine: Engine, url: str, registry: Registry) -> None:
    """A signal goes to the next waiting job, and the row of the wait is deleted. A retry does not change a waiting job; a retried job waits again."""

    @task(registry=registry, name="wait")
    def wait(ctx: JobContext) -> None:
        ctx.wait_signal("go", timeout=3_600)

    with working(url, registry):
        first = add_one(engine, enqueue(wait))
        wait_until(lambda: job_of(engine, first).status is JobStatus.BLOCKED)
        second = add_one(engine, enqueue(wait))
        wait_until(lambda: job_of(engine, second).status is JobStatus.BLOCKED)
        assert run(engine, retry_jobs(Job.id == first)) == []
        run(engine, cancel_jobs(Job.id == first))
        with Session(engine) as session:
            session.add(Signal("go"))
            session.commit()
        wait_until(lambda: job_of(engine, second).is_finished)
        run(engine, update(Wait).values(since=text("since - interval '1 day'"), until=func.now()))
        run(engine, retry_jobs(Job.id == first))
        wait_until(lambda: job_of(engine, first).status is JobStatus.BLOCKED)
        ((since, until),) = run(
            engine, select(Wait.since > func.now() - text("interval '1 hour'"), Wait.until > func.now())
        )
        assert since
        assert until
        run(engine, discard_jobs(Job.id == first))
        wait_until(lambda: run(engine, select(Wait.is_new)) == [(False,)])
        with engine.begin() as connection:
            Store(Job).drop_stray_notes(connection)
    assert run(engine, select(Wait)) == []


def test_a_step_that_a_completed_run_has_not_asked_for_is_orphaned(engine: Engine, registry: Registry) -> None:
    """The record stays, and is shown as orphaned until the job runs again."""

    @task(registry=registry, name="changed", retry=AGAIN)
    def changed(ctx: JobContext) -> None:
        ctx.step("kept", str)
        if ctx.attempt == 1:
            ctx.step("old", str)
            raise RuntimeError("on purpose")

    def orphans() -> list[str]:
        return [row.name for row in run(engine, job_steps(job)) if row.orphaned]

    job = add_one(engine, enqueue(changed))
    drain(engine, registry)
    assert orphans() == ["old"]
    run(engine, retry_jobs(Job.id == job))
    assert orphans() == []


def test_a_value_is_as_large_as_a_result_may_be(engine: Engine) -> None:
    """The registry's `max_payload` is the limit, and the message is like that for a result."""
    registry = Registry(max_payload=100)

    @task(registry=registry, name="large", max_attempts=1)
    def large(ctx: JobContext) -> None:
        ctx.step("text", lambda: "x" * 200)

    job = add_one(engine, enqueue(large))
    drain(engine, registry)
    assert (
        "its result: 202 bytes of JSON, more than the 100 that are accepted" in job_of(engine, job).errors[0]["message"]
    )


def _prune(connection: Connection, archive: bool) -> None:
    Store(Job).make_months_ahead(connection)
    Store(Job).prune(connection, archive=archive)


def _prune_workflow(connection: Connection, archive: bool) -> None:
    Store(Job).make_months_ahead(connection)
    for id in Store(Job).workflows_over(connection):
        Store(Job).prune_workflow(connection, id, seconds=60.0, archive=archive)


WAYS: dict[str, Callable[[Connection], object]] = {
    "by an operator": lambda connection: connection.execute(prune_jobs(text("true"))),
    "when its time is over": lambda connection: _prune(connection, False),
    "to the archive": lambda connection: _prune(connection, True),
    "with its workflow": lambda connection: _prune_workflow(connection, False),
    "with its workflow, to the archive": lambda connection: _prune_workflow(connection, True),
    "by hand": lambda connection: connection.execute(text("DELETE FROM sa_jobqueue.job")),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_records_of_a_job_go_with_it(engine: Engine, registry: Registry, way: str) -> None:
    """They are deleted with the job, in each way to delete it. The archive keeps them, without large results."""

    @task(registry=registry, name="ship")
    def ship(ctx: JobContext) -> None:
        ctx.step("label", lambda: ["A", None])
        ctx.step("large", lambda: "x" * 2_000)
        ctx.sleep_until(datetime(2020, 1, 1, tzinfo=UTC))

    with Session(engine) as session:
        job: Any = enqueue(ship)
        if "workflow" in way:
            flow = Workflow("w")
            job = flow.add(ship)
            session.add(flow)
        else:
            session.add(job)
        session.commit()
        id = session.scalars(select(Job.id)).one()
    with working(engine, registry):
        wait_until(lambda: job_of(engine, id).is_finished and ("workflow" not in way or _has_ended(engine)))
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.job SET purge_at = now()"))
        connection.execute(text("UPDATE sa_jobqueue.workflow SET purge_at = now()"))
        connection.execute(insert(Wait).values(job_id=id, step="left", is_new=False))
        Store(Job).declare_archived(connection, {"ship"} if "archive" in way else (), ())
    with engine.begin() as connection:
        WAYS[way](connection)
        if way == "by hand":
            Store(Job).drop_stray_notes(connection)
    assert run(engine, select(Job.id)) == run(engine, select(Step.name)) == run(engine, select(Wait.step)) == []
    if "archive" in way:
        with engine.connect() as connection:
            label, large, sleep = read_steps(connection, id, job=ArchivedJob)
        assert (label.name, label.result, large.result, sleep.kind) == ("label", ["A", None], None, "sleep")
        assert large.size == 2_002


def _has_ended(engine: Engine) -> bool:
    return run(engine, select(WorkflowRow.finished_at.is_not(None))) == [(True,)]
