"""Unique jobs through a worker: their keys are free when they have ended, however that comes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    AsyncJobContext,
    Cancel,
    Discard,
    Job,
    JobContext,
    JobStatus,
    Registry,
    Retry,
    Snooze,
    Unique,
    enqueue,
    task,
)
from sa_jobqueue.models import UniqueKey
from tests.support.nightly import crossed
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, job_of, long_healthy, working

HOUR = 3600.0


def keys(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return set(connection.scalars(select(UniqueKey.key)))


ENDS: dict[str, tuple[Any, JobStatus, bool]] = {
    "completed": (lambda: None, JobStatus.COMPLETED, True),
    "cancelled": (lambda: Cancel("not wanted"), JobStatus.CANCELLED, True),
    "failed": (lambda: Discard("hopeless"), JobStatus.FAILED, True),
    "retried": (lambda: Retry(after=HOUR), JobStatus.QUEUED, False),
    "snoozed": (lambda: Snooze(HOUR), JobStatus.QUEUED, False),
}


@pytest.mark.parametrize(("kind", "end"), crossed(["plain", "session", "async", "async session"], ENDS))
def test_a_key_is_free_when_its_job_has_ended_and_not_before(
    engine: Engine, url: str, registry: Registry, end: str, kind: str
) -> None:
    """Of each kind of handler, with a session and without. A neighbour that is not unique ends beside it."""
    outcome, status, free = ENDS[end]

    @task(registry=registry, name="plain")
    def plain() -> object:
        return outcome()

    @task(registry=registry, name="session")
    def with_session(ctx: JobContext) -> object:
        ctx.session.execute(text("SELECT 1"))
        return outcome()

    @task(registry=registry, name="async")
    async def async_plain() -> object:
        return outcome()

    @task(registry=registry, name="async session")
    async def with_async_session(ctx: AsyncJobContext) -> object:
        await ctx.session.execute(text("SELECT 1"))
        return outcome()

    handler: Any = {"plain": plain, "session": with_session, "async": async_plain, "async session": with_async_session}[
        kind
    ]
    unique, neighbour = add(engine, enqueue(handler.options(unique=Unique("k"))), enqueue(handler))
    drain(url, registry)
    assert [job_of(engine, id).status for id in (unique, neighbour)] == [status] * 2
    assert keys(engine) == (set() if free else {"k"})
    again = job_of(engine, add_one(engine, enqueue(handler.options(unique=Unique("k")))))
    assert again.duplicate_of == (None if free else unique)


def test_a_job_that_is_not_kept_frees_its_key(engine: Engine, url: str, registry: Registry) -> None:
    """With retain=0 its row goes at once, and its key with it."""

    @task(registry=registry, retain=0, unique=Unique("k"))
    def leave() -> None: ...

    add_one(engine, enqueue(leave))
    drain(url, registry)
    assert keys(engine) == set()
    with Session(engine) as session:
        assert session.scalars(select(Job)).all() == []


@pytest.mark.parametrize(
    ("level", "size"), crossed(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"], [1, 100_000])
)
def test_a_job_that_was_enqueued_while_the_other_ran_is_not_lost(
    engine: Engine, url: str, registry: Registry, level: str, size: int
) -> None:
    """With the scope "queued": the running one may have looked before the data of the new one was there."""
    producer = engine.execution_options(isolation_level=level)
    started, end = threading.Event(), threading.Event()

    @task(registry=registry, unique=Unique(by=(), scope="queued"))
    def rebuild(text: str) -> None:
        started.set()
        end.wait(30)

    first = add_one(engine, enqueue(rebuild, "x" * size))
    with working(url, registry):
        assert started.wait(30)
        second, third = add(producer, enqueue(rebuild, ""), enqueue(rebuild, ""))
        end.set()
        wait_until(lambda: job_of(engine, second).status == JobStatus.COMPLETED)
    assert job_of(engine, first).status == JobStatus.COMPLETED
    assert job_of(engine, third).is_duplicate


def test_a_worker_starts_a_job_only_when_its_duplicates_are_committed(
    engine: Engine, url: str, registry: Registry
) -> None:
    """So that it sees what their transactions wrote; that it is due and cannot be had is no error."""

    @task(registry=registry, unique=Unique(by=(), scope="queued"))
    def rebuild() -> None: ...

    held_back = add_one(engine, enqueue(rebuild))
    with Session(engine) as session:
        session.add(enqueue(rebuild))
        session.flush()
        with working(url, registry):
            wait_until(lambda: any_gate_is_open(engine))
            assert job_of(engine, held_back).status == JobStatus.QUEUED
            session.commit()
            wait_until(lambda: job_of(engine, held_back).status == JobStatus.COMPLETED)


def any_gate_is_open(engine: Engine) -> bool:
    """Whether a worker waits to be woken."""
    with engine.connect() as connection:
        asked = "SELECT to_timestamp(pg_sequence_last_value('sa_jobqueue.gate_any')) > clock_timestamp()"
        return bool(connection.scalar(text(asked)))


def test_a_key_that_is_locked_holds_up_no_start(engine: Engine, url: str, registry: Registry) -> None:
    """Nor is the key taken from a job that has got it since: it can be had as soon as the lock is gone."""

    @task(registry=registry, unique=Unique("k", scope="queued"))
    def rebuild() -> None: ...

    add_one(engine, enqueue(rebuild))
    with engine.connect() as connection:
        connection.execute(select(UniqueKey.key).with_for_update())
        drain(url, registry)
    assert keys(engine) == {"k"}
    assert not job_of(engine, add_one(engine, enqueue(rebuild))).is_duplicate


def test_a_rescued_job_keeps_its_key_to_its_end(engine: Engine, url: str, registry: Registry) -> None:
    """And gives it back when its rescues are used up, by the rescue itself."""

    @task(registry=registry, unique=Unique(by=("n",)))
    def work(n: int) -> None: ...

    again, used_up = add(engine, enqueue(work, 1), enqueue(work, 2))
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE sa_jobqueue.job SET status = 'running', claim_token = 7, attempt = 1, worker = gen_random_uuid()::text, "
                "rescues = CASE id WHEN :used_up THEN 4 ELSE 0 END, lease_expires_at = now() - interval '1 hour'"
            ),
            {"used_up": used_up},
        )
    long_healthy(engine)
    with working(url, registry):
        wait_until(lambda: job_of(engine, again).status == JobStatus.COMPLETED)
        wait_until(lambda: job_of(engine, used_up).status == JobStatus.FAILED)
    assert keys(engine) == set()


def test_maintenance_frees_keys_that_were_left_behind(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """By a DELETE of plain SQL, say; and it says so. A key of a job that waits stays."""

    @task(registry=registry, unique=Unique(by=("n",)))
    def work(n: int) -> None: ...

    deleted, _ = add(engine, enqueue(work, 1), enqueue(work.options(delay=HOUR), 2))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM sa_jobqueue.job WHERE id = :id"), {"id": deleted})
    with working(url, registry, prune_every=0.1):
        wait_until(lambda: len(keys(engine)) == 1)
    assert "unique keys were held by jobs that had ended or were gone" in caplog.text
