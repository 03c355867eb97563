"""Follow-ups: the write that ends a job enqueues another job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Discard, Job, JobContext, JobStatus, Registry, TaskName, enqueue, enqueue_many, task
from sa_jobqueue.errors import OptionError, TaskError
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import cancel_jobs, discard_jobs, retry_jobs
from sa_jobqueue.testing import drain as drain_here
from tests.support.cli import output
from tests.support.commands import run_command, start_command
from tests.support.waiting import wait_until
from tests.support.working import add_one, drain, job_of, long_healthy

APP = """
import os
import signal

from sa_jobqueue import Registry, task

registry = Registry()


@task(registry=registry, name="shop.notify", queue="mail", max_attempts=3)
def notify(job_id: int, task: str, error: str, args: dict) -> None: ...


@task(registry=registry, name="shop.die", on_failure=notify)
def die(order_id: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""

OTHER = """
from sa_jobqueue import Registry, task

registry = Registry()


@task(registry=registry)
def other() -> None: ...
"""


def followed(engine: Engine, id: int) -> list[Job]:
    """The follow-ups of a job."""
    with Session(engine) as session:
        return list(session.scalars(select(Job).where(Job.meta["follow_up_of"].as_integer() == id).order_by(Job.id)))


def test_a_worker_without_the_tasks_that_rescues_a_job_for_the_last_time_enqueues_its_follow_up(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    """The row of the job names its follow-up, so another worker enqueues it after `kill -9`."""
    (tmp_path / "dying.py").write_text(APP)
    (tmp_path / "other.py").write_text(OTHER)
    long_healthy(engine, 2.0)
    command = ("enqueue", "--app=dying:registry", "shop.die", '{"order_id": 7}')
    assert run_command(*command, url=database_url, cwd=tmp_path).returncode == 0
    with Session(engine) as session:
        job = session.scalars(select(Job.id)).one()
        session.execute(update(Job).values(rescues=5))  # as many as a worker allows
        session.commit()
    with start_command("work", "--app=dying:registry", "--lease=2", url=database_url, cwd=tmp_path) as worker:
        wait_until(lambda: worker.process.poll() is not None)
    with start_command("work", "--app=other:registry", "--lease=2", url=database_url, cwd=tmp_path):
        wait_until(lambda: job_of(engine, job).is_finished, 60)
    assert job_of(engine, job).status is JobStatus.FAILED
    (made,) = followed(engine, job)
    assert "on failure shop.notify" in output("show", str(job), url=database_url)
    assert (made.task, made.queue, made.max_attempts, made.extras) == ("shop.notify", "mail", 3, None)
    assert made.args["error"].startswith("WorkerLost: ")
    assert made.args == {"job_id": job, "task": "shop.die", "args": {"order_id": 7}, "error": made.args["error"]}


@pytest.fixture
def tasks(registry: Registry) -> Mapping[str, Any]:
    """Tasks that end in all ways, each with follow-ups, by name."""

    @task(registry=registry, name="failed", version=2)
    def failed(job_id: int, task: str, error: str, args: dict[str, Any], more: int = 3) -> None: ...

    @task(registry=registry, name="succeeded")
    def succeeded(ctx: JobContext, result: Any, job_id: int) -> None: ...

    failed.upcast(1)(dict)
    options: dict[str, Any] = {"registry": registry, "on_failure": failed, "on_success": succeeded, "record": True}

    @task(name="completes", **options)
    def completes() -> int:
        return 1

    @task(registry=registry, name="brief")
    def brief(job_id: int) -> None: ...

    @task(registry=registry, name="leaves", retain=0, on_success=brief)
    def leaves() -> None: ...

    @task(name="commits", **options)
    def commits(ctx: JobContext) -> int:
        ctx.session.execute(text("SELECT 1"))
        return 2

    @task(name="fails", max_attempts=1, **options)
    def fails(order_id: int) -> int:
        raise ValueError("no paper")

    @task(name="discards", **options)
    def discards() -> int:
        raise Discard("no use")

    @task(name="slow", timeout=0.05, max_attempts=1, **options)
    async def slow() -> int:
        await asyncio.Event().wait()
        return 1

    return {made.name: made for made in (failed, succeeded, brief, completes, leaves, commits, fails, discards, slow)}


def test_every_end_but_a_cancel_enqueues_its_follow_up_once(
    engine: Engine, registry: Registry, tasks: Mapping[str, Any]
) -> None:
    """Completions with and without `ctx.session` and without a time of retention, failures, discards, timeouts, deadlines; and again the second end of a retried job."""
    with Session(engine) as session:
        session.execute(text("TRUNCATE sa_jobqueue.job"))
        session.commit()
    ends = {
        name: add_one(engine, enqueue(tasks[name])) for name in ("completes", "leaves", "commits", "discards", "slow")
    }
    ends["fails"] = add_one(engine, enqueue(tasks["fails"], 7))
    ends["misfit"] = add_one(engine, enqueue(tasks["fails"].options(), 7))
    waiting = {
        name: add_one(engine, enqueue(tasks["completes"].options(queue="none")))
        for name in ("discarded", "cancelled", "late")
    }
    with engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == ends["misfit"]).values(args={"x": 1}))
        connection.execute(discard_jobs(Job.id == waiting["discarded"]))
        connection.execute(cancel_jobs(Job.id == waiting["cancelled"]))
        connection.execute(
            update(Job).where(Job.id == waiting["late"]).values(deadline_at=func.now() - timedelta(hours=1))
        )
        default_store.end_overdue(connection, limit=10)
    drain(engine, registry)
    made = {name: [(job.task, job.args) for job in followed(engine, id)] for name, id in (ends | waiting).items()}

    def failure(name: str, task: str, error: str, **args: Any) -> list[Any]:
        id = (ends | waiting)[name]
        return [("failed", {"job_id": id, "task": task, "error": error, "args": args})]

    assert made["completes"] == [("succeeded", {"result": 1, "job_id": ends["completes"]})]
    assert made["commits"] == [("succeeded", {"result": 2, "job_id": ends["commits"]})]
    assert made["fails"] == failure("fails", "fails", "ValueError: no paper", order_id=7)
    assert made["discards"] == failure("discards", "discards", "Discard: no use")
    assert made["slow"][0][1]["error"].startswith("sa_jobqueue.errors.HandlerTimeout: ")
    assert made["misfit"][0][1]["error"].startswith("sa_jobqueue.errors.PayloadError: ")
    assert made["discarded"] == failure("discarded", "completes", "Discard: discarded by an operator")
    assert made["late"] == failure("late", "completes", "DeadlineOver: its deadline was over while it waited")
    assert made["leaves"] == [("brief", {"job_id": ends["leaves"]})]
    assert made["cancelled"] == []
    assert [job.extras for job in followed(engine, ends["fails"])] == [{"version": 2}]

    with engine.begin() as connection:
        connection.execute(retry_jobs(Job.id == ends["fails"]))
    drain(engine, registry)
    assert len(followed(engine, ends["fails"])) == 2
    with Session(engine) as session:
        left = select(Job.task, Job.status).where(
            Job.task.in_(("failed", "succeeded", "brief")), Job.status != JobStatus.COMPLETED
        )
        assert session.execute(left).all() == []


def test_what_cannot_be_a_follow_up_is_refused_where_it_stands(tasks: Mapping[str, Any], registry: Registry) -> None:
    """The error names the option, the task, and what is wrong."""

    @task(registry=registry, name="asks")
    def asks(job_id: int, order: int) -> None: ...

    completes = tasks["completes"]
    with pytest.raises(
        TaskError, match="on_failure: 'asks' takes order, and a follow-up is given only job_id, task, args, error"
    ):
        task(registry=registry, on_failure=asks)
    for option, given, why in (
        (
            "on_success",
            tasks["failed"],
            "on_success: 'failed' takes error, and a follow-up is given only job_id, task, args, result",
        ),
        ("on_failure", "failed", "on_failure must be a task, a function with @task, or False, not 'failed'"),
        ("on_failure", TaskName("failed"), "on_failure must be a task"),
        (
            "on_failure",
            tasks["failed"].options(expires_in=3),
            "can be no unique or debounced job, and have no expiry and no deadline",
        ),
        ("on_success", tasks["succeeded"].options(columns={"a": 1}), "gets no subject and no columns of your own"),
    ):
        with pytest.raises(OptionError, match=why):
            completes.options(**{option: given})
    with pytest.raises(TaskError, match=r"'succeeded' takes result, which is stored only with @task\(record=True\)"):
        task(registry=registry, on_success=tasks["succeeded"])
    assert completes.options(on_failure=False, on_success=False).call().extras is None


def test_extras_that_were_written_by_hand_do_not_hold_up_the_end(
    engine: Engine, registry: Registry, tasks: Mapping[str, Any]
) -> None:
    """The job ends, and has no follow-up."""
    with Session(engine) as session:
        jobs = [
            Job(task="completes", args={}, extras={"on_success": given})
            for given in ({"task": None}, {"task": "x", "priority": "high"}, {"task": "", "takes": 7}, "x", None)
        ]
        session.add_all(jobs)
        session.commit()
        made = [job.id for job in jobs]
    drain(engine, registry)
    assert [job_of(engine, id).status for id in made] == [JobStatus.COMPLETED] * 5
    assert [followed(engine, id) for id in made] == [[]] * 5


def test_a_trigger_that_refuses_a_follow_up_does_not_hold_up_the_end(
    engine: Engine, registry: Registry, tasks: Mapping[str, Any]
) -> None:
    """A job that fails has failed, and a job that completes has completed; the server logs a warning."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION sa_jobqueue.refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE 'not %', NEW.task USING ERRCODE = 'SHOP1'; END $$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER refuse BEFORE INSERT ON sa_jobqueue.job FOR EACH ROW "
                "WHEN (NEW.task IN ('failed', 'succeeded')) EXECUTE FUNCTION sa_jobqueue.refuse()"
            )
        )
    try:
        ends = {name: add_one(engine, enqueue(tasks[name])) for name in ("completes", "commits", "discards")}
        drain(engine, registry)
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP FUNCTION sa_jobqueue.refuse() CASCADE"))
    assert [job_of(engine, id).status.value for id in ends.values()] == ["completed", "completed", "failed"]
    assert job_of(engine, ends["discards"]).errors[-1]["message"] == "no use"
    assert [followed(engine, id) for id in ends.values()] == [[]] * 3


def test_follow_ups_run_in_the_testing_kit_and_come_in_bulk(
    engine: Engine, registry: Registry, tasks: Mapping[str, Any]
) -> None:
    """`drain` runs them in the test's transaction."""
    with Session(engine) as session:
        session.execute(enqueue_many([tasks["completes"].call(), tasks["completes"].options(on_success=False).call()]))
        drained = drain_here(session, registry=registry)
        assert [ran.task for ran in drained] == ["completes", "completes", "succeeded"]
        session.rollback()
