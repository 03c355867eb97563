"""`explain_job`: each reason why a job is not being run, with the situation made for real, and a worker where it needs one."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from sqlalchemy import Engine, event, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import (
    Cancel,
    Job,
    JobContext,
    JobExplanation,
    JobStatus,
    KeyLimits,
    Rate,
    RateLimited,
    Registry,
    Retry,
    TaskName,
    Unique,
    Workflow,
    enqueue,
    explain_job,
    task,
)
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.reasons import KINDS, What
from sa_jobqueue.statements import (
    cancel_jobs,
    cancel_workflows,
    pause,
    pause_workflows,
    retry_jobs,
    set_limit,
)
from tests.support.factory import make_job
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, job_of, working

A_TASK = TaskName("a_task")


def why(engine: Engine, id: int) -> JobExplanation:
    with Session(engine) as session:
        return explain_job(session, id)


def whats(engine: Engine, id: int) -> list[str]:
    return [one.what for one in why(engine, id)]


def a_worker(engine: Engine, *queues: str, **columns: Any) -> None:
    """The row of a worker that is alive: no process is behind it, so nothing happens meanwhile."""
    values = {"host": "web-1", "pid": 7, "concurrency": 4, "version": "1", **columns}
    with engine.begin() as connection:
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), queues=list(queues), **values))


@contextmanager
def serving(engine: Engine, url: str, registry: Registry, **options: Any) -> Iterator[None]:
    """A worker meanwhile, whose row is there."""
    with working(url, registry, **options):
        wait_until(lambda: skipped(engine))
        yield


def skipped(engine: Engine) -> list[Any]:
    """What each worker says of the jobs that it skips."""
    with engine.connect() as connection:
        return list(connection.scalars(select(WorkerRow.skipped)))


@pytest.fixture
def held(registry: Registry) -> Iterator[threading.Event]:
    """Jobs of the task "hold" run until this is set."""
    free = threading.Event()

    @task(registry=registry, name="hold")
    def hold(ctx: JobContext) -> None:
        free.wait(60)

    yield free
    free.set()


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


# ---- jobs that wait


def test_a_scheduled_job_says_when_and_in_how_long(engine: Engine) -> None:
    """It needs no help, if a worker is there."""
    a_worker(engine, "default")
    job = add_one(engine, enqueue(A_TASK.options(delay=timedelta(hours=3, minutes=1))))
    found = why(engine, job)
    assert [one.what for one in found] == ["later"]
    assert "(in 3h 0m), when it is due" in str(found) or "(in 3h 1m), when it is due" in str(found)
    assert not found.needs_help


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
    assert "has a task that none of its queue's 1 live workers knows: a_task; it went back to its queue until" in str(
        found
    )
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
            with engine.begin() as connection:
                connection.exec_driver_sql("DROP TRIGGER odd ON sa_jobqueue.job")
            wait_until(lambda: whats(engine, job) == ["completed"])
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
        wait_until(lambda: whats(engine, waiting)[0] == "refused")
        assert "of such jobs a worker runs one at a time" in str(why(engine, waiting))
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
    """All that its workers have."""
    first = add_one(engine, enqueue("hold"))
    with serving(engine, url, registry, queues={"default": 1}, buffer=0):
        wait_until(lambda: job_of(engine, first).status is JobStatus.RUNNING)
        second = add_one(engine, enqueue("hold"))
        (reason,) = why(engine, second)
        assert (reason.what, reason.used, reason.limit) == ("busy", 1, 1)
        assert str(reason) == "waits for a slot: its workers hold 1 job in 1 slots"
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
