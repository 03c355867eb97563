"""What the worker could not give a handler, a connection for its `ctx.session`, is no attempt of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, func, make_url, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import AsyncJobContext, Job, JobContext, JobStatus, Registry, Retry, TaskName, enqueue, task
from sa_jobqueue.migrations.grants import Can, grant_statements
from tests.support import pooler
from tests.support.databases import connect
from tests.support.nightly import crossed, nightly
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import add, job_of, services_of, working

#: Connections that the server allows the worker's role: its own three, and some for handlers.
LIMIT = 6


@pytest.fixture
def few(database_url: str, engine: Engine) -> Iterator[str]:
    """A URL of a role that may have few connections at a time."""
    if pooler.is_pooled(database_url):
        pytest.skip("a pooler has those wait who get no connection")
    role = f"few_{make_url(database_url).database}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'few' CONNECTION LIMIT {LIMIT}"))
        for statement in grant_statements(role, [Can.WORK]):
            connection.execute(text(statement))
    yield make_url(database_url).set(username=role, password="few").render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f'DROP OWNED BY "{role}"'))
        connection.execute(text(f'DROP ROLE "{role}"'))


class Held(ExitStack):
    """All connections that are left, taken by another client."""

    def take(self, url: str) -> None:
        with suppress(psycopg.OperationalError):
            while True:
                self.enter_context(connect(url))


def counts(engine: Engine) -> dict[str, int]:
    with Session(engine) as session:
        found = session.execute(select(Job.status, func.count()).group_by(Job.status))
        return {str(status): int(number) for status, number in found}


@pytest.mark.parametrize(("does", "kind"), crossed(["nothing", "wraps"], ["sync", "async"]))
def test_a_session_that_cannot_be_opened_is_no_attempt_of_its_job(
    engine: Engine, few: str, registry: Registry, kind: str, does: str
) -> None:
    """The job goes back, no more of its queue are claimed until there is a connection, and other queues go on."""
    started: list[int] = []

    @task(registry=registry, name="sync")
    def sync_handler(ctx: JobContext) -> None:
        started.append(ctx.job_id)
        try:
            ctx.session.execute(text("SELECT 1"))
        except Exception as error:
            if does == "nothing":
                raise
            raise LookupError("something of the handler's own") from error

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        started.append(ctx.job_id)
        try:
            await ctx.session.execute(text("SELECT 1"))
        except Exception as error:
            if does == "nothing":
                raise
            raise LookupError("something of the handler's own") from error

    @task(registry=registry, name="other")
    async def other_handler() -> None: ...

    with Held() as held, working(few, registry, queues={"default": 3, "other": 2}, hoard=2.0) as worker:
        wait_until(lambda: services_of(worker).maintenance._connection is not None)
        listener = services_of(worker).listener
        wait_until(lambda: listener is not None and listener.listening)
        held.take(few)
        ids = add(engine, *(enqueue(TaskName(kind).options(max_attempts=1)) for _ in range(200)))
        wait_until(lambda: len(started) > 0)
        others = add(engine, *(enqueue(TaskName("other").options(queue="other", max_attempts=1)) for _ in range(20)))
        wait_until(lambda: all(job_of(engine, id).is_finished for id in others))
        wait_until(lambda: counts(engine).get("running", 0) == 0)
        assert len(started) <= 6  # three slots, and those that had begun just then
        held.close()
        wait_until(lambda: counts(engine) == {"completed": 220})
    jobs = [job_of(engine, id) for id in ids]
    assert {(job.status, job.attempt, len(job.errors)) for job in jobs} == {(JobStatus.COMPLETED, 1, 0)}


@pytest.mark.parametrize("kind", ["sync", "async", "sync step", *nightly("async step")])
def test_a_pool_that_has_no_connection_in_time_is_no_attempt_either(
    engine: Engine, url: str, registry: Registry, kind: str
) -> None:
    """An engine of the application's may have fewer connections than the queue has slots."""

    def went_back() -> bool:
        """Whether a job has gone back while another held the connection."""
        with engine.connect() as connection:
            return connection.execute(text(
                "SELECT FROM sa_jobqueue.job WHERE claims > 1 OR claims = 1 AND status = 'queued'")).first() is not None  # fmt: skip

    @task(registry=registry, name="sync")
    def sync_handler(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))
        wait_until(went_back)

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("SELECT 1"))
        await wait_until_async(went_back)

    @task(registry=registry, name="sync step")
    def sync_step(ctx: JobContext) -> None:
        with ctx.step_session("hold") as session:
            session.execute(text("SELECT 1"))
            wait_until(went_back)

    @task(registry=registry, name="async step")
    async def async_step(ctx: AsyncJobContext) -> None:
        async with ctx.step_session("hold") as session:
            await session.execute(text("SELECT 1"))
            await wait_until_async(went_back)

    small: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1}
    own, own_async = create_engine(url, **small), create_async_engine(url, **small)
    ids = add(engine, *(enqueue(TaskName(kind).options(max_attempts=1)) for _ in range(6)))
    options = {"sessionmaker": sessionmaker(own), "async_sessionmaker": async_sessionmaker(own_async)}
    with working(url, registry, queues={"default": 3}, **options):
        wait_until(lambda: all(job_of(engine, id).is_finished for id in ids))
    own.dispose()
    asyncio.run(own_async.dispose())
    jobs = [job_of(engine, id) for id in ids]
    assert {(job.status, job.attempt, len(job.errors)) for job in jobs} == {(JobStatus.COMPLETED, 1, 0)}
    assert sum(job.claims for job in jobs) > 6


def test_what_a_handler_makes_of_it_by_itself_counts(engine: Engine, url: str, registry: Registry) -> None:
    """One that goes on without its session, or says what should come of the job; and a job that may not run twice has failed."""
    nowhere = create_engine(make_url(url).set(port=1))

    @task(registry=registry, name="returns")
    def returns(ctx: JobContext) -> None:
        with suppress(Exception):
            ctx.session.execute(text("SELECT 1"))

    @task(registry=registry, name="says")
    def says(ctx: JobContext) -> None:
        try:
            ctx.session.execute(text("SELECT 1"))
        except Exception as error:
            raise Retry(0, reason="of its own") from error

    @task(registry=registry, name="once", max_attempts=1, rescue=False)
    def once(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))

    ids = add(engine, *(enqueue(TaskName(name).options(max_attempts=1)) for name in ("returns", "says", "once")))
    with working(url, registry, sessionmaker=sessionmaker(nowhere)):
        wait_until(lambda: all(job_of(engine, id).is_finished for id in ids))
    assert [job_of(engine, id).status for id in ids] == ["completed", "failed", "failed"]
    assert job_of(engine, ids[1]).errors[-1]["message"] == "of its own"
    assert job_of(engine, ids[2]).errors[-1]["type"] == "sqlalchemy.exc.OperationalError"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_a_listener_refuses_on_a_connection_that_is_there_is_an_attempt(
    engine: Engine, url: str, registry: Registry, kind: str
) -> None:
    """It fails the attempt. Else a job whose tenant a `begin` listener does not know, say, would go back for ever, and its queue would
    wait each time."""

    @task(registry=registry, name="sync")
    def sync_handler(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))

    @task(registry=registry, name="async")
    async def async_handler(ctx: AsyncJobContext) -> None:
        await ctx.session.execute(text("SELECT 1"))

    def refuse(connection: Any) -> None:
        raise LookupError("no tenant")

    own, own_async = create_engine(url), create_async_engine(url)
    event.listen(own, "begin", refuse)
    event.listen(own_async.sync_engine, "begin", refuse)
    (id,) = add(engine, Job(task=kind, max_attempts=1))
    makers = {"sessionmaker": sessionmaker(own), "async_sessionmaker": async_sessionmaker(own_async)}
    with working(url, registry, **makers):
        wait_until(lambda: job_of(engine, id).status == JobStatus.FAILED)
    own.dispose()
    asyncio.run(own_async.dispose())
    (error,) = job_of(engine, id).errors
    assert (error["type"], error["message"]) == ("LookupError", "no tenant")


def test_a_connection_that_broke_in_the_pool_is_no_attempt(
    engine: Engine, url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool does not look at a connection that was used just now. A thread says BEGIN before the handler begins to write."""
    pooler.skip_where_deaf(url)
    monkeypatch.setattr("sa_jobqueue.worker.connections.pool._JUST_NOW", 60.0)
    backends: list[int] = []

    @task(registry=registry, name="handler", max_attempts=1)
    def handler(ctx: JobContext) -> None:
        backends.append(ctx.session.scalars(select(func.pg_backend_pid())).one())

    def is_gone(pid: int) -> bool:
        with engine.connect() as connection:
            return not connection.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid})

    with working(url, registry) as worker:
        add(engine, enqueue(handler))
        wait_until(lambda: worker.counts["completed"] == 1)
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backends[0]})
        wait_until(lambda: is_gone(backends[0]))
        (id,) = add(engine, enqueue(handler))
        wait_until(lambda: job_of(engine, id).status in {JobStatus.COMPLETED, JobStatus.FAILED})
    job = job_of(engine, id)
    assert (job.status, job.attempt, job.errors) == (JobStatus.COMPLETED, 1, [])
    assert len(set(backends)) == 2
