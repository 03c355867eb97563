"""`explain_job`: each reason why a job is not being run, with the situation made for real, and a worker where it needs one."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from sqlalchemy import Engine, event, func, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import Cancel, Job, JobStatus, Registry, TaskName, Unique, Workflow, enqueue, explain_job, task
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.rules.reasons import KINDS, What
from sa_jobqueue.statements import cancel_jobs, cancel_workflows, pause
from tests.support.explaining import a_worker, serving, whats, why
from tests.support.factory import make_job
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, job_of

A_TASK = TaskName("a_task")


# ---- what the answer is


def test_there_is_a_sentence_for_each_kind_and_they_come_in_its_order() -> None:
    """A kind without a sentence would fail where it is found."""
    assert tuple(KINDS) == get_args(What)


def test_a_session_and_a_connection_of_either_kind_are_asked_alike(engine: Engine) -> None:
    """Also a scoped session; the answer has the job's task, queue and status."""
    job = add_one(engine, enqueue(A_TASK.options(queue="mail")))
    asked = [why(engine, job), explain_job(scoped_session(sessionmaker(engine)), job)]
    with engine.connect() as connection:
        asked.append(explain_job(connection, job))
    for one in asked:
        assert (one.job_id, one.status, one.task, one.queue) == (job, JobStatus.QUEUED, "a_task", "mail")
        assert [reason.what for reason in one.reasons] == ["unserved"]
        assert str(one) == f"job {job} (a_task) has no worker: no live one serves queue mail"


async def test_an_async_session_and_an_async_connection_are_awaited(async_engine: AsyncEngine) -> None:
    """It is the same answer."""
    async with AsyncSession(async_engine) as session:
        session.add(job := enqueue("a_task"))
        await session.flush()
        number = job.id
        await session.commit()
        found = await explain_job(session, number)
        async with async_engine.connect() as connection:
            assert (await explain_job(connection, number)).reasons == found.reasons
    assert [one.what for one in found] == ["unserved"]


def test_a_job_of_the_session_is_found_before_the_commit(session: Session) -> None:
    """It is flushed, as by any query."""
    session.add(job := enqueue("a_task"))
    session.flush()
    session.add(enqueue("other"))
    assert explain_job(session, job.id).status is JobStatus.QUEUED


@pytest.mark.parametrize("id", ["7", None, True, 2**63])
def test_what_is_no_id_is_refused(session: Session, id: Any) -> None:
    """As of a job that was not flushed."""
    with pytest.raises((TypeError, ValueError), match="id"):
        explain_job(session, id)


def test_what_is_no_session_is_refused(engine: Engine) -> None:
    with pytest.raises(TypeError, match="a connection of either"):
        explain_job(engine, 7)  # type: ignore[call-overload]


def test_it_takes_two_statements_and_of_an_ended_job_one(engine: Engine) -> None:
    """However many workers and reasons there are."""
    with engine.begin() as connection:
        waits, ended = make_job(connection), make_job(connection, "completed")
    for job, number in ((waits, 2), (ended, 1)):
        seen = list[str]()

        def note(*told: Any, seen: list[str] = seen) -> None:
            seen.append(told[2])

        event.listen(engine, "before_cursor_execute", note)
        why(engine, job)
        event.remove(engine, "before_cursor_execute", note)
        assert len(seen) == number


def test_several_reasons_come_with_the_deciding_one_first(engine: Engine) -> None:
    """A later time, before a pause, before the want of a worker."""
    job = add_one(engine, enqueue(A_TASK.options(delay=3_600, expires_in=7_200)))
    with engine.begin() as connection:
        connection.execute(pause("default", reason="deploy"))
    assert whats(engine, job) == ["later", "paused", "unserved", "expires"]


# ---- no such job


def test_a_job_that_was_never_committed(engine: Engine) -> None:
    """Its id is beyond all others; of an empty table too."""
    assert "there is none in this database, so it was not committed" in str(why(engine, 1))
    job = add_one(engine, enqueue("a_task"))
    found = why(engine, job + 1)
    assert (found.status, found.task, found.queue, found.needs_help) == (None, None, None, True)
    assert f"job {job + 1} does not exist: the newest is job {job}, so it was not committed" in str(found)


def test_a_job_whose_row_is_gone(engine: Engine, url: str, registry: Registry) -> None:
    """It has completed, and its task keeps none."""

    @task(registry=registry, name="gone", retain=0)
    def gone() -> None: ...

    job = add_one(engine, enqueue(gone))
    add(engine, enqueue(TaskName("other").options(queue="other")))
    drain(url, registry)
    assert "does not exist: it was deleted after its time of retention" in str(why(engine, job))


# ---- jobs that have ended


def test_a_job_that_has_completed_needs_no_help(engine: Engine, url: str, registry: Registry) -> None:
    """It says when it has."""

    @task(registry=registry, name="quick")
    def quick() -> None: ...

    job = add_one(engine, enqueue(quick))
    drain(url, registry)
    (reason,) = why(engine, job)
    assert (reason.what, reason.since, reason.needs_help) == ("completed", job_of(engine, job).finished_at, False)


def test_a_job_that_has_failed_says_its_last_error(engine: Engine, url: str, registry: Registry) -> None:
    """In a line, with the number of its attempts."""

    @task(registry=registry, name="fails", max_attempts=1)
    def fails() -> None:
        raise ValueError("no such order\nat all")

    job = add_one(engine, enqueue(fails))
    drain(url, registry)
    (reason,) = why(engine, job)
    assert (reason.what, reason.used, reason.limit) == ("failed", 1, 1)
    assert reason.reason == "ValueError: no such order"
    assert reason.advice(job) == f"sa-jobqueue retry {job}"


def test_a_cancelled_job_says_by_whom_or_why(engine: Engine, url: str, registry: Registry) -> None:
    """Its handler, an operator, its expiry, or its workflow."""

    @task(registry=registry, name="cancels")
    def cancels() -> Cancel:
        return Cancel("the order is gone")

    own, expired = add(engine, enqueue(cancels), enqueue(cancels.options(expires_in=timedelta(milliseconds=1))))
    by_operator = add_one(engine, enqueue(cancels.options(delay=60)))
    with Session(engine) as session:
        session.execute(cancel_jobs(Job.id == by_operator))
        session.add(flow := Workflow("flow"))
        member = flow.add(cancels.options(delay=60))
        session.flush()
        session.execute(cancel_workflows(flow.id, reason="the customer has left")).all()
        session.commit()
        of_workflow = member.job_id
    drain(url, registry)
    said = {job: str(why(engine, job)) for job in (own, expired, by_operator, of_workflow)}
    assert "Cancel: the order is gone" in said[own]
    assert "Expired: no attempt was made before its expiry" in said[expired]
    assert "on request" in said[by_operator]
    assert "the customer has left" in said[of_workflow]
    assert {whats(engine, job)[0] for job in said} == {"cancelled"}


def test_a_duplicate_names_the_other_job(engine: Engine) -> None:
    """And how to ask about that."""
    unique = TaskName("a_task").options(unique=Unique(key="7"))
    first, second = add(engine, enqueue(unique), enqueue(unique))
    (reason,) = why(engine, second)
    assert (reason.what, reason.job_ids) == ("duplicate", [first])
    assert reason.advice(second) == f"sa-jobqueue why {first}"


# ---- jobs that a worker holds


def test_a_running_job_names_its_worker_and_its_lease(
    engine: Engine, url: str, registry: Registry, held: threading.Event
) -> None:
    """And whether it was asked to cancel."""
    job = add_one(engine, enqueue("hold"))
    with serving(engine, url, registry, lease=30.0):
        wait_until(lambda: job_of(engine, job).status is JobStatus.RUNNING)
        (reason,) = why(engine, job)
        with engine.begin() as connection:
            connection.execute(cancel_jobs(Job.id == job))
        assert "it was asked to cancel" in str(why(engine, job))
        held.set()
    row = job_of(engine, job)
    assert reason.what == "claimed"
    assert reason.since == row.claimed_at
    assert reason.until is not None
    assert reason.until > datetime.now(UTC)
    with engine.connect() as connection:
        assert reason.name is not None
        assert reason.name.rpartition(":")[2].isdigit(), connection


def test_a_job_of_a_worker_that_has_gone_is_lost_and_then_overdue(engine: Engine) -> None:
    """The worker's row is stale, or not there any more; until the lease has run out no other may take the job."""
    gone, stale = uuid.uuid4(), uuid.uuid4()
    a_worker(engine, "default")
    with engine.begin() as connection:
        row = {"host": "web-2", "pid": 8, "queues": ["default"], "concurrency": 1, "version": "1"}
        connection.execute(insert(WorkerRow).values(id=stale, seen_at=func.now() - timedelta(minutes=3), **row))
        left = make_job(connection, "running", worker=str(gone), claimed_at=timedelta(minutes=-3))
        unseen = make_job(connection, "running", worker=str(stale))
        over = make_job(connection, "running", worker=str(stale), lease_expires_at=timedelta(seconds=-5))
    assert f"is held by worker {gone}, which has left; it is rescued when its lease runs out" in str(why(engine, left))
    assert "is held by web-2:8, which was last seen" in str(why(engine, unseen))
    assert "was being run by web-2:8; its lease has run out" in str(why(engine, over))
    assert [whats(engine, one) for one in (left, unseen, over)] == [["lost"], ["lost"], ["overdue"]]


def test_without_a_live_worker_no_job_is_rescued(engine: Engine) -> None:
    """So that is said, too."""
    with engine.begin() as connection:
        over = make_job(connection, "running", lease_expires_at=timedelta(seconds=-5))
    found = why(engine, over)
    assert [one.what for one in found] == ["overdue", "unserved"]
    assert found.needs_help
    assert "has no worker: none is alive" in str(found)
