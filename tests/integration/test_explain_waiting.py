"""`explain_job` of jobs that wait: each reason with the situation made for real, and a worker where it needs one."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    Job,
    JobStatus,
    KeyLimits,
    Rate,
    RateLimited,
    Registry,
    Retry,
    TaskName,
    Workflow,
    enqueue,
    explain_job,
    task,
)
from sa_jobqueue.statements import pause, pause_workflows, retry_jobs, set_limit
from tests.support.explaining import a_worker, serving, skipped, whats, why
from tests.support.factory import make_job
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, job_of

A_TASK = TaskName("a_task")


def test_a_scheduled_job_says_when_and_in_how_long(engine: Engine) -> None:
    """It needs no help, if a worker is there."""
    a_worker(engine, "default")
    job = add_one(engine, enqueue(A_TASK.options(delay=timedelta(hours=3, minutes=1))))
    found = why(engine, job)
    assert [one.what for one in found] == ["later"]
    assert "(in 3h 0m), when it is due" in str(found) or "(in 3h 1m), when it is due" in str(found)
    assert not found.needs_help


@pytest.mark.parametrize("status", ["queued", "running", "completed", "blocked"])
@pytest.mark.parametrize("time", ["infinity", "-infinity", "4000-01-01 BC", "20000-01-01"])
def test_times_that_python_cannot_hold_are_an_answer_too(engine: Engine, time: str, status: str) -> None:
    """An operator may park a job by `run_at = 'infinity'`."""
    a_worker(engine, "default")
    names = ("run_at", "created_at", "claimed_at", "lease_expires_at", "finished_at", "expires_at", "deadline_at")
    job = add_one(engine, enqueue(A_TASK))
    with engine.begin() as connection:
        changes = ", ".join(f"{name} = '{time}'" for name in (*names, "cancel_requested_at"))
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET status = '{status}', {changes} WHERE id = {job}")
    found = why(engine, job)
    assert found.reasons
    assert str(found)
    if (status, time) == ("queued", "infinity"):
        assert found.reasons[0].what == "later"
        assert found.reasons[0].until is not None
        assert found.reasons[0].until.year == 9999


def test_a_retried_job_says_its_last_error(engine: Engine, url: str, registry: Registry) -> None:
    """And how many attempts it has made."""

    @task(registry=registry, name="again", max_attempts=5)
    def again() -> Retry:
        return Retry(3_600, reason="the other side is down")

    job = add_one(engine, enqueue(again))
    drain(url, registry)
    a_worker(engine, "default")
    (reason,) = why(engine, job)
    assert (reason.what, reason.used, reason.limit) == ("retry", 1, 5)
    assert "for its next attempt; 1 of 5 made: Retry: the other side is down" in str(reason)
    assert reason.advice(job) == f"sa-jobqueue retry {job}"
    with engine.begin() as connection:
        assert connection.scalars(retry_jobs(Job.id == job)).all() == [job]
    assert whats(engine, job) == ["turn"]


def test_jobs_ahead_are_counted_by_priority(engine: Engine) -> None:
    """Those of other queues, later ones, and those that run are not."""
    a_worker(engine, "default")
    with engine.begin() as connection:
        for columns in ({"priority": 9}, {"priority": 5}, {}, {"queue": "other"}, {"run_at": timedelta(hours=1)}):
            make_job(connection, **columns)
        make_job(connection, "running")
        job = make_job(connection)
        make_job(connection)
        first = make_job(connection, priority=9, run_at=timedelta(seconds=-5))
    found = why(engine, job)
    assert str(found) == f"job {job} (a_task) is behind 4 jobs of queue default by priority"
    assert str(why(engine, first)) == f"job {first} (a_task) is first in queue default"
    assert not found.needs_help


def test_jobs_ahead_are_those_of_its_key(engine: Engine) -> None:
    """Keys take turns, so those of others do not count."""
    a_worker(engine, "default")
    with engine.begin() as connection:
        for key in ("1", "1", "2"):
            make_job(connection, concurrency_key=key)
        job = make_job(connection, concurrency_key="1")
        before = make_job(connection, concurrency_key="1", priority=9)
    assert "is behind 3 jobs of key 1, which takes turns with others of its queue" in str(why(engine, job))
    assert "is first of key 1" in str(why(engine, before))


def test_a_queue_that_no_worker_serves(engine: Engine, url: str, registry: Registry) -> None:
    """A worker of another queue is none, nor one that is stale."""
    job = add_one(engine, enqueue(A_TASK.options(queue="mail")))
    with serving(engine, url, registry):
        found = why(engine, job)
    assert [one.what for one in found] == ["unserved"]
    assert found.needs_help
    assert found.reasons[0].advice(job) == "start a worker: sa-jobqueue work --queue mail --app ..."
    a_worker(engine, "mail", seen_at=func.now() - timedelta(minutes=5))
    assert whats(engine, job) == ["unserved"]


def test_a_task_that_no_worker_knows(engine: Engine, url: str, registry: Registry) -> None:
    """The worker has given the job back for a while; an alias is known, and a job that was not tried yet says no time."""

    @task(registry=registry, name="named", aliases=["old_name"])
    def named() -> None: ...

    later = add_one(engine, enqueue(TaskName("old_name").options(queue="other")))
    with serving(engine, url, registry, queues={"default": 1}):
        job = add_one(engine, enqueue("a_task"))
        wait_until(lambda: job_of(engine, job).claims > 0 and job_of(engine, job).status is JobStatus.QUEUED)
        found = why(engine, job)
    assert [one.what for one in found] == ["unknown"]
    assert found.reasons[0].until == job_of(engine, job).run_at
    assert "has a task that no live worker of its queue knows: a_task; it went back to its queue until" in str(found)
    a_worker(engine, "other", tasks={"named": {"queue": "default", "timeout": None, "aliases": ["old_name"]}})
    assert whats(engine, later) == ["turn"]
    a_worker(engine, "third", tasks={"named": {}})
    new = add_one(engine, enqueue(A_TASK.options(queue="third")))
    assert why(engine, new).reasons[0].until is None


def test_a_claim_that_the_database_refuses(engine: Engine, url: str, registry: Registry) -> None:
    """A trigger of the application's: its worker writes down which jobs it skips, and why; and no more once it can claim them."""

    @task(registry=registry, name="quick")
    def quick() -> None: ...

    with engine.begin() as connection:
        connection.exec_driver_sql("""
            CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not on a Sunday'; END $$;
            CREATE TRIGGER odd BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW EXECUTE FUNCTION odd()
        """)
    try:
        job = add_one(engine, enqueue(quick))
        with serving(engine, url, registry, lease=60.0):
            wait_until(lambda: whats(engine, job)[0] == "refused")
            found = why(engine, job)
            another = add_one(engine, enqueue(quick))
            wait_until(
                lambda: whats(engine, another)[0] == "refused", timeout=15
            )  # otherwise the row is written every 20 s
            with engine.begin() as connection:
                connection.exec_driver_sql("DROP TRIGGER odd ON sa_jobqueue.job")
            wait_until(lambda: whats(engine, job) == whats(engine, another) == ["completed"])
            wait_until(lambda: skipped(engine) == [None])
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP FUNCTION IF EXISTS odd CASCADE")
    (reason,) = [one for one in found if one.what == "refused"]
    assert reason.reason is not None
    assert "not on a Sunday" in reason.reason
    assert (reason.used, reason.limit, found.needs_help) == (1, 1, True)


def test_a_job_whose_workers_have_died_waits_for_another_such(
    engine: Engine, url: str, registry: Registry, held: threading.Event
) -> None:
    """A worker runs one of them at a time, and says that it skips the others."""
    with engine.begin() as connection:
        first, second = (make_job(connection, task="hold", rescues=2) for _ in range(2))
    with serving(engine, url, registry, lease=60.0):
        wait_until(
            lambda: {job_of(engine, one).status for one in (first, second)} == {JobStatus.RUNNING, JobStatus.QUEUED}
        )
        waiting = first if job_of(engine, first).status is JobStatus.QUEUED else second
        wait_until(lambda: whats(engine, waiting)[0] == "suspect")
        assert "has lost its worker 2 times: " in str(why(engine, waiting))
        assert not why(engine, waiting).needs_help
        held.set()


def test_a_row_that_another_transaction_has_locked(engine: Engine) -> None:
    """With the server process that has done it."""
    a_worker(engine, "default")
    job = add_one(engine, enqueue("a_task"))
    with engine.begin() as connection:
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        connection.execute(select(Job.id).where(Job.id == job).with_for_update())
        assert explain_job(connection, job).reasons[0].what == "turn"
        (reason,) = why(engine, job)
        assert (reason.what, reason.pid) == ("locked", pid)
        assert reason.advice(job) == f"SELECT pg_terminate_backend({pid})"
    assert whats(engine, job) == ["turn"]


def test_slots_that_are_all_taken(engine: Engine, url: str, registry: Registry, held: threading.Event) -> None:
    """All that its workers have for its queue; those of other queues are free."""
    first = add_one(engine, enqueue("hold"))
    with serving(engine, url, registry, queues={"default": 1, "mail": 5}, buffer=0):
        wait_until(lambda: job_of(engine, first).status is JobStatus.RUNNING)
        second = add_one(engine, enqueue("hold"))
        (reason,) = why(engine, second)
        assert (reason.what, reason.used, reason.limit) == ("busy", 1, 1)
        assert str(reason) == "waits for a slot: the 1 slot of queue default is busy on the worker that can run it"
        held.set()


def test_workers_that_the_database_holds_back(engine: Engine) -> None:
    """If all do; one that does not may take the job."""
    job = add_one(engine, enqueue("a_task"))
    a_worker(engine, "default", pressure="the oldest snapshot is 5m old")
    assert str(why(engine, job)).endswith("because the database is under pressure: the oldest snapshot is 5m old")
    a_worker(engine, "default")
    assert whats(engine, job) == ["turn"]


def test_what_why_waiting_says_is_there(engine: Engine, url: str, registry: Registry, held: threading.Event) -> None:
    """Pauses, limits and rates, of queues and keys."""
    keyed = TaskName("hold").options(key="42")
    with engine.begin() as connection:
        connection.execute(set_limit("default", rate=Rate(1, per=60, burst=2), per_key=KeyLimits(running=1)))
    ran = add_one(engine, enqueue(keyed))
    with serving(engine, url, registry, lease=60.0):
        wait_until(lambda: job_of(engine, ran).status is JobStatus.RUNNING)
        job = add_one(engine, enqueue(keyed))
        assert whats(engine, job) == ["running"]
        assert f"waits for limit default/42: 1 of 1 running (job {ran})" in str(why(engine, job))
        other = add_one(engine, enqueue("hold"))
        wait_until(lambda: job_of(engine, other).status is JobStatus.RUNNING)
        assert whats(engine, job) == ["running", "rate"]
        with engine.begin() as connection:
            connection.execute(pause("default", key="42", reason="the account is locked"))
        found = why(engine, job)
        assert [one.what for one in found] == ["paused", "running", "rate"]
        assert found.reasons[0].advice(job) == "sa-jobqueue resume default --key 42"
        held.set()


def test_a_queue_that_a_handler_has_blocked(engine: Engine, url: str, registry: Registry) -> None:
    """The other side has rate limited it."""

    @task(registry=registry, name="limited")
    def limited() -> RateLimited:
        return RateLimited(3_600)

    first = add_one(engine, enqueue(limited))
    with serving(engine, url, registry):
        wait_until(lambda: job_of(engine, first).claims == 1 and job_of(engine, first).status is JobStatus.QUEUED)
        job = add_one(engine, enqueue(limited))
        assert whats(engine, job) == ["blocked"]
        assert not why(engine, job).needs_help


def test_members_of_a_workflow_wait_for_others_or_for_its_pause(
    engine: Engine, url: str, registry: Registry, held: threading.Event
) -> None:
    """And in the end for the look that releases them."""
    with Session(engine) as session:
        flow = Workflow("flow")
        parent = flow.add(TaskName("hold"))
        child = flow.after([parent], TaskName("hold"))
        session.add(flow)
        session.flush()
        first, second, number = parent.job_id, child.job_id, flow.id
        session.commit()
        assert [one.what for one in explain_job(session, second)] == ["parents"]
        session.execute(pause_workflows(number)).all()
        found = explain_job(session, second)
        assert [one.what for one in found] == ["parents", "held"]
        assert found.reasons[1].advice(second) == f"sa-jobqueue workflow resume {number}"
        session.rollback()
        # No worker has looked since.
        session.execute(update(Job).where(Job.id == first).values(_duplicate_of=None))
        session.connection().exec_driver_sql(
            f"UPDATE sa_jobqueue.job SET status = 'completed', finished_at = now() WHERE id = {first}"
        )
        assert [one.what for one in explain_job(session, second)] == ["released", "unserved"]
        session.rollback()
    held.set()
    drain(url, registry)
    assert whats(engine, second) == ["completed"]


def test_expiry_and_deadline_are_said_and_once_over_they_decide(engine: Engine) -> None:
    """Also if the job is not due before."""
    a_worker(engine, "default")
    near, never = add(
        engine,
        enqueue(A_TASK.options(expires_in=60, deadline=120)),
        enqueue(A_TASK.options(delay=3_600, expires_at=datetime.now(UTC) + timedelta(seconds=60))),
    )
    assert whats(engine, near) == ["turn", "expires", "deadline"]
    assert "it is not due before" in str(why(engine, never))
    with engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == near).values(expires_at=func.now() - timedelta(seconds=1)))
    found = why(engine, near)
    assert [one.what for one in found] == ["expired", "turn", "deadline"]
    assert "is too late: its expiry was" in str(found)
