"""Jobs that are not to be started, or not to go on, after some time."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, insert, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobContext, Registry, RetryPolicy, Unique, enqueue, enqueue_many, task
from sa_jobqueue.errors import OptionError
from sa_jobqueue.models import UniqueKey
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import retry_jobs
from sa_jobqueue.worker.running import timeouts
from tests.support.nightly import crossed
from tests.support.waiting import wait_until
from tests.support.working import add, finished, job_of, working


def declare(registry: Registry, **options: Any) -> Any:
    @task(registry=registry, name="a_task", **options)
    def a_task() -> None: ...

    return a_task


def test_limits_count_from_the_enqueueing_by_the_database(engine: Engine, registry: Registry) -> None:
    """By a Session, by `enqueue_many` and by plain SQL; jobs with limits and without are one INSERT."""
    declared = declare(registry, expires_in=60, deadline=timedelta(hours=1))
    plain = declared.options(expires_in=False, deadline=False)
    with Session(engine) as session:
        jobs = [enqueue(one) for one in [declared, plain, declared.options(deadline=False), plain]]
        statements: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        session.add_all(jobs)
        session.commit()
        assert len([one for one in statements if one.startswith("INSERT")]) == 1
        found = [(job.expires_at, job.deadline_at) for job in jobs]
        made = jobs[0].created_at
    minute, hour = made + timedelta(minutes=1), made + timedelta(hours=1)
    assert found == [(minute, hour), (None, None), (minute, None), (None, None)]
    with engine.begin() as connection:
        ids = connection.scalars(enqueue_many([plain.call(), declared.call()])).all()
        rows = connection.execute(
            select(Job.expires_at - func.now(), Job.deadline_at - func.now()).where(Job.id.in_(ids)).order_by(Job.id)
        ).all()
    assert rows == [(None, None), (timedelta(minutes=1), timedelta(hours=1))]


def test_a_plain_insert_names_no_limit(engine: Engine, registry: Registry) -> None:
    with Session(engine) as session:
        statements: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        session.add(enqueue(declare(registry)))
        session.flush()
    assert "INSERT" in "".join(statements)
    assert "expires_at" not in "".join(statements)
    assert "deadline_at" not in "".join(statements)


def test_a_job_that_could_not_be_started_in_time_is_refused(registry: Registry) -> None:
    with pytest.raises(OptionError, match="not after the time at which it is due"):
        enqueue(declare(registry).options(delay=60, expires_in=60))
    with pytest.raises(OptionError, match="has its deadline"):
        enqueue(declare(registry).options(delay=60, deadline=30))


@pytest.mark.parametrize(("limit", "kind"), crossed(["expires_at", "deadline_at"], ["sync", "async"]))
def test_a_job_whose_time_is_over_is_not_started(
    engine: Engine, url: str, registry: Registry, limit: str, kind: str
) -> None:
    """It is claimed, and ended without its handler: no attempt counts, and its key is free."""
    called = threading.Event()

    @task(registry=registry, name="sync")
    def sync_handler() -> None:
        called.set()

    @task(registry=registry, name="async")
    async def async_handler() -> None:
        called.set()

    handler: Any = sync_handler if kind == "sync" else async_handler
    over = {limit: func.now() - text("interval '1 second'")}
    with engine.begin() as connection:
        statement = insert(Job).values(task=handler.name, uniqueness={"key": "k"}, **over).returning(Job.id)
        id = connection.execute(statement).scalar_one()
    with working(url, registry):
        wait_until(lambda: finished(engine, id))
    job = job_of(engine, id)
    expected = (JobStatus.CANCELLED, "Expired") if limit == "expires_at" else (JobStatus.FAILED, "DeadlineOver")
    assert (job.status, job.errors[-1]["type"]) == expected
    assert job.attempt == 0
    assert not called.is_set()
    with engine.connect() as connection:
        assert connection.execute(select(UniqueKey.key)).all() == []


def test_an_expiry_is_for_the_first_attempt(engine: Engine, url: str, registry: Registry) -> None:
    """A retry is made although the expiry is over."""

    @task(registry=registry, max_attempts=2, retry=RetryPolicy(base=0, jitter=0))
    def fails_once(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            with engine.begin() as connection:
                connection.execute(update(Job).values(expires_at=func.now()))
            raise ValueError("once")

    (id,) = add(engine, enqueue(fails_once.options(expires_in=3600)))
    with working(url, registry):
        wait_until(lambda: finished(engine, id))
    assert (job_of(engine, id).status, job_of(engine, id).attempt) == (JobStatus.COMPLETED, 2)


def test_a_job_whose_worker_died_does_not_expire(engine: Engine, url: str, registry: Registry) -> None:
    """It was begun: maintenance leaves it, and it is run."""

    @task(registry=registry)
    def runs() -> None: ...

    (id,) = add(engine, enqueue(runs.options(expires_in=3600)))
    with engine.begin() as connection:
        connection.execute(update(Job).values(expires_at=func.now(), rescues=1))
    with engine.begin() as connection:
        assert default_store.end_expired(connection) == []
    with working(url, registry):
        wait_until(lambda: finished(engine, id))
    assert job_of(engine, id).status == JobStatus.COMPLETED


def test_a_retry_that_would_begin_after_the_deadline_is_not_made(engine: Engine, url: str, registry: Registry) -> None:
    @task(registry=registry, retry=RetryPolicy(base=600, jitter=0))
    def fails() -> None:
        raise ValueError("no")

    (id,) = add(engine, enqueue(fails.options(deadline=300)))
    with working(url, registry):
        wait_until(lambda: finished(engine, id))
    job = job_of(engine, id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.errors[-1]["message"] == "no; its deadline is over before it could be tried again"


@pytest.mark.parametrize("timeout", [None, 600])
def test_a_running_attempt_is_stopped_at_the_deadline(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, timeout: int | None
) -> None:
    # For the run alone: however slow a machine is, the job is started before.
    left = timeouts.seconds_left
    monkeypatch.setattr(timeouts, "seconds_left", lambda *given: left(*given) - 9.5)

    @task(registry=registry, timeout=timeout)
    async def waits() -> None:
        await asyncio.sleep(600)

    (id,) = add(engine, enqueue(waits.options(deadline=10)))
    with working(url, registry):
        wait_until(lambda: finished(engine, id))
    job = job_of(engine, id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert "still running at the deadline" in job.errors[-1]["message"]


def test_maintenance_ends_what_waits_too_long(engine: Engine, registry: Registry) -> None:
    """Without a worker that could claim it; its unique key is free again. Other jobs stay, and one that was started in time has no expiry any more."""
    one = declare(registry)
    expiring = one.options(expires_in=3600, unique=Unique("k"))
    expired, overdue, waiting, plain, retrying = add(
        engine, enqueue(expiring), enqueue(one.options(deadline=3600)), enqueue(one.options(expires_in=3600)),
        enqueue(one), enqueue(one.options(expires_in=3600)),
    )  # fmt: skip
    with engine.begin() as connection:
        connection.execute(update(Job).where(Job.id.in_([expired, retrying])).values(expires_at=func.now()))
        connection.execute(update(Job).where(Job.id == retrying).values(attempt=1))
        connection.execute(update(Job).where(Job.id == overdue).values(deadline_at=func.now()))
    with engine.begin() as connection:
        assert default_store.forget_expiry(connection) == [retrying]
        assert [one.id for one in default_store.end_expired(connection)] == [expired]
        assert [one.id for one in default_store.end_overdue(connection)] == [overdue]
        assert connection.execute(select(UniqueKey.key)).all() == []
        statuses = {row.id: row.status for row in connection.execute(select(Job.id, Job.status))}
        assert set(connection.scalars(select(Job.id).where(Job.expires_at.is_not(None)))) == {expired, waiting}
        assert default_store.forget_expiry(connection) == []
    assert statuses == {
        expired: JobStatus.CANCELLED, overdue: JobStatus.FAILED, waiting: JobStatus.QUEUED, plain: JobStatus.QUEUED,
        retrying: JobStatus.QUEUED,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(retry_jobs(Job.id.in_([expired, overdue])))
        again = connection.execute(
            select(Job.status, Job.expires_at, Job.deadline_at).where(Job.id.in_([expired, overdue]))
        ).all()
    assert set(again) == {(JobStatus.QUEUED, None, None)}
