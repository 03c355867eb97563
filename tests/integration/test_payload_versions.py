"""Versions of a task's arguments: old rows are brought up, newer rows are left alone."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, literal, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    Job,
    JobStatus,
    Registry,
    Schedule,
    TaskName,
    Workflow,
    enqueue,
    enqueue_many,
    enqueue_select,
    every,
    task,
)
from sa_jobqueue.models import Step, WorkflowCallback
from sa_jobqueue.sql.schedules.declared import to_change
from sa_jobqueue.statements import copy_jobs, edit_jobs, retry_jobs
from sa_jobqueue.tasks.tasks import AnyTask
from sa_jobqueue.testing import check_upcasts
from tests.support.cli import as_json, invoke, refused
from tests.support.commands import start_command
from tests.support.waiting import wait_until
from tests.support.working import add_one, drain, job_of

OLD = """
from sa_jobqueue import Registry, task

registry = Registry()


@task(registry=registry, name="shop.send", record=True)
def send(order: int) -> str:
    return f"old {order}"
"""

NEW = """
from sa_jobqueue import Registry, task

registry = Registry()


@task(registry=registry, name="shop.send", version=2, record=True, executor="process")
def send(order_id: int, copies: int) -> str:
    return f"new {order_id} {copies}"


@send.upcast(1)
def send_v1(args):
    return {"order_id": args["order"], "copies": 1}
"""


def test_a_release_can_be_rolled_back_while_its_jobs_wait(engine: Engine, database_url: str, tmp_path: Path) -> None:
    """The old worker runs its own jobs and gives those of the new version back, without an attempt; the new worker runs both kinds."""
    (tmp_path / "old.py").write_text(OLD)
    (tmp_path / "new.py").write_text(NEW)
    old = add_one(engine, enqueue("shop.send", order=1))
    app = {"url": database_url, "cwd": tmp_path}
    with start_command("work", "--app=old:registry", **app) as worker:
        wait_until(lambda: job_of(engine, old).is_finished)
        new = add_one(engine, enqueue(TaskName("shop.send", version=2), order_id=2, copies=3))
        worker.wait_for("no version 2 of the task 'shop.send' is registered here")
        wait_until(lambda: job_of(engine, new).status is JobStatus.QUEUED)
        why = invoke("why", str(new), url=database_url)
        assert "has a task that no live worker of its queue knows: shop.send of version 2" in why.stdout
        assert "deploy workers that have it; if the task was renamed, add its old name" in why.stdout
    assert (job_of(engine, old).result, job_of(engine, new).attempt) == ("old 1", 0)

    late = add_one(engine, enqueue("shop.send", order=4))
    with engine.begin() as connection:
        connection.execute(edit_jobs(Job.id == new, run_at=timedelta(0)))
    with start_command("work", "--app=new:registry", **app):
        wait_until(lambda: job_of(engine, new).is_finished and job_of(engine, late).is_finished)
    assert (job_of(engine, new).result, job_of(engine, new).attempt) == ("new 2 3", 1)
    assert (job_of(engine, late).result, job_of(engine, late).attempt) == ("new 4 1", 1)
    assert as_json("show", str(new), url=database_url)["extras"] == {"version": 2}


@pytest.fixture
def send(registry: Registry) -> AnyTask:
    """A task of version 3 that takes `n`: version 1 had `a`, version 2 had `b`."""

    @task(registry=registry, name="send", version=3, record=True)
    def send(n: int) -> int:
        return n

    @send.upcast(1)
    def from_1(args: dict[str, Any]) -> dict[str, Any]:
        return {"b": args["a"] * 10}

    @send.upcast(2)
    def from_2(args: dict[str, Any]) -> dict[str, Any]:
        return {"n": args["b"] + 1}

    return send


def test_every_way_to_enqueue_writes_the_version(engine: Engine, registry: Registry, send: AnyTask) -> None:
    """Also in bulk, from a query, by a schedule and a workflow, as a copy, and where a later call replaces the arguments of a waiting job."""
    waits = send.options(delay=3600)
    debounced = send.options(debounce=60, key="k")
    with Session(engine) as session:
        session.execute(text("TRUNCATE sa_jobqueue.job"))
        one = enqueue(waits, 1)
        flow = Workflow("a")
        flow.add(waits, 3)
        flow.on_success(send, 9)
        session.add_all([one, flow, Schedule(every(60), send, 4, name="tick")])
        session.add(enqueue(TaskName("send").options(debounce=60, key="k"), a=5))
        session.flush()
        session.add(enqueue(debounced, 6))
        session.flush()
        session.execute(enqueue_many([waits.call(2), waits.call(3)]))
        session.execute(enqueue_select(waits, select(literal(5).label("n"))))
        session.execute(copy_jobs(Job.id == one.id, delay=3600))
        session.commit()
        assert session.scalars(select(Job.extras).where(Job.is_live)).all() == [{"version": 3}] * 7
        assert session.scalars(select(Schedule.extras)).one() == {"version": 3}
        assert session.scalars(select(WorkflowCallback.extras)).one() == {"version": 3}
        plain = enqueue("send", a=1)
        session.add(plain)
        session.flush()
        assert plain.extras is None
        session.execute(send.edit(plain, 7))
        session.refresh(plain)
        assert (plain.args, plain.extras) == ({"n": 7}, {"version": 3})
        session.rollback()


def test_upcasters_are_applied_in_turn_and_a_failure_names_the_upcaster(
    engine: Engine, registry: Registry, send: AnyTask
) -> None:
    """A job whose old arguments an upcaster cannot read fails, stays, and completes after a retry when the upcaster is mended."""
    first, second, third = (
        add_one(engine, enqueue(TaskName("send", version=version), **args))
        for version, args in ((1, {"a": 4}), (2, {"b": 4}), (3, {"n": 4}))
    )
    bad = add_one(engine, enqueue("send", z=1))
    drain(engine, registry)
    assert [job_of(engine, id).result for id in (first, second, third)] == [41, 5, 4]
    failed = job_of(engine, bad)
    assert (failed.status, failed.attempt) == (JobStatus.FAILED, 1)
    assert failed.errors[-1]["message"] == (
        "task 'send': the upcaster of version 1, tests.integration.test_payload_versions.send.<locals>.from_1, raised KeyError: 'a'"
    )
    send.upcasts._by_version[1] = lambda args: {"b": args["z"]}  # the mended release
    with engine.begin() as connection:
        connection.execute(retry_jobs(Job.id == bad))
    drain(engine, registry)
    assert job_of(engine, bad).result == 2


def test_no_version_that_was_written_by_hand_stops_other_jobs(
    engine: Engine, registry: Registry, send: AnyTask
) -> None:
    """Such a job fails as one whose arguments cannot be read."""
    versions = ("1e131000", '"2"', "-1", "1.5", "true", '{"a": 1}', "[]", "0")
    with Session(engine) as session:
        ids = [
            session.scalar(
                text(
                    "INSERT INTO sa_jobqueue.job (task, args, extras) VALUES ('send', '{\"n\": 1}', CAST(:extras AS jsonb)) RETURNING id"
                ),
                {"extras": f'{{"version": {version}}}'},
            )
            for version in versions
        ]
        session.commit()
    good = add_one(engine, enqueue(send, 1))
    drain(engine, registry)
    assert job_of(engine, good).status is JobStatus.COMPLETED
    with engine.connect() as connection:
        of = select(Job.status, Job.errors[-1]["type"].astext).where(Job.id.in_(ids)).order_by(Job.id)
        newest, *others = connection.execute(of).all()
    assert newest == (JobStatus.QUEUED, None)
    assert set(others) == {(JobStatus.FAILED, "sa_jobqueue.errors.PayloadError")}


def test_arguments_of_a_schedule_that_were_edited_keep_their_version() -> None:
    """The next release changes what code has declared, and not what an operator has written."""

    class Row:
        args, extras = {"n": 1}, None

    declared, new = {"args": {"a": 1}, "extras": None}, {"args": {"n": 2}, "extras": {"version": 2}}
    assert to_change(Row, declared, new, ["args", "extras"]) == {}
    assert to_change(Row, {**declared, "args": {"n": 1}}, new, ["args", "extras"]) == new


def test_the_testing_kit_runs_all_upcasters_over_samples(send: AnyTask) -> None:
    """The results must fit the handler, and each older version has a sample."""
    assert check_upcasts(send, {1: [{"a": 1}], 2: [{"b": 5}], 3: [{"n": 7}]}) == [{"n": 11}, {"n": 6}, {"n": 7}]
    with pytest.raises(AssertionError, match="task 'send' has version 3, and no sample of version 2"):
        check_upcasts(send, {1: [{"a": 1}]})
    with pytest.raises(
        AssertionError,
        match=r"sample 1 of version 2: task 'send': the stored arguments do not fit the handler: argument n: ",
    ):
        check_upcasts(send, {2: [{"b": 5}, {"b": 0.5}], 1: [{"a": 1}]})


DEPLOYED = """
from sa_jobqueue import JobContext, Registry, task

registry = Registry()
STEPS = ["label"]


@task(registry=registry, name="shop.send")
def send(order: int) -> None: ...


@task(registry=registry, name="shop.ship")
def ship(ctx: JobContext) -> None:
    for name in STEPS:
        ctx.step(name, print)
    for number in range(2):
        ctx.step(f"book {number}", print)
"""


def test_the_doctor_lists_what_new_code_does_not_know(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a deployment: tasks, newer versions and names of recorded steps, of due, scheduled and blocked jobs, with their numbers."""
    (tmp_path / "deployed_shop.py").write_text(DEPLOYED)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ("doctor", "--before-deploy", "--app=deployed_shop:registry", "--json")
    assert as_json(*command, url=database_url)["ok"] is True
    with Session(engine) as session:
        (flow := Workflow("w")).gate(flow.add(TaskName("shop.ship")))
        session.add(flow)
        session.add_all(
            [
                enqueue("shop.gone"),
                enqueue(TaskName("shop.gone").options(delay=60)),
                enqueue(TaskName("shop.send", version=2), order_id=1),
                Schedule(every(60), TaskName("shop.report"), name="nightly"),
                Job(task="shop.send", args={"order": 1}, extras={"on_failure": {"task": "shop.tell"}, "on_success": 7}),
                (job := enqueue("shop.ship")),
            ]
        )
        session.flush()
        names = ("label", "label#2", "book 7", "charge", "signal:paid")
        session.add_all([Step(job_id=job.id, claim_token=1, revision=1, kind="step", name=name) for name in names])
        session.commit()
    result = invoke(*command, url=database_url)
    assert result.exit_code == 1
    found = {check["name"]: (check["level"], check["detail"]) for check in json.loads(result.stdout)["checks"]}
    assert found["new-tasks"] == (
        "problem",
        "the application does not have: shop.gone (1 queued, 1 scheduled), shop.report (1 schedule), shop.tell (1 follow-up)",
    )
    assert found["new-versions"] == (
        "problem",
        "a newer version waits: shop.send of version 2, and the application has version 1 (1 queued)",
    )
    assert found["new-steps"] == (
        "notice",
        "the application's source does not mention: step charge of shop.ship (1 job), step paid of shop.ship (1 job)",
    )
    assert "--before-deploy compares the database with new code" in refused(
        "doctor", "--before-deploy", url=database_url
    )
