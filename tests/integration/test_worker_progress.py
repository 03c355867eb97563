"""`ctx.progress`: what a running job says of itself is seen by others, and holds up no other job."""

from __future__ import annotations

import asyncio
import threading
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, undefer

from sa_jobqueue import AsyncJobContext, Job, JobContext, JobStatus, Registry, Retry, enqueue, task
from sa_jobqueue.errors import OptionError
from sa_jobqueue.models import Progress
from tests.support.waiting import wait_until, wait_until_async
from tests.support.working import add, add_one, drain, job_of, renew_now, services_of, working


def said(engine: Engine, id: int) -> tuple[float | None, str | None]:
    with engine.connect() as connection:
        found = connection.execute(select(Job.progress, Job.progress_message).where(Job.id == id)).one()
        return found.progress, found.progress_message


@pytest.mark.parametrize("uses_session", [False, True])
def test_progress_is_seen_from_another_session_while_the_job_runs(
    engine: Engine, url: str, registry: Registry, uses_session: bool
) -> None:
    """The handler's transaction is open meanwhile. The last word stays after the end."""
    go_on = threading.Event()

    @task(registry=registry)
    def export(ctx: JobContext) -> None:
        if uses_session:
            ctx.session.execute(text("SELECT 1"))
        ctx.progress(0.4, "page 12 of 30")
        assert go_on.wait(30)
        ctx.progress(1)

    id = add_one(engine, enqueue(export))
    with working(url, registry):
        wait_until(lambda: said(engine, id) == (0.4, "page 12 of 30"))
        assert job_of(engine, id).status == JobStatus.RUNNING
        go_on.set()
        wait_until(lambda: job_of(engine, id).status == JobStatus.COMPLETED)
        wait_until(lambda: said(engine, id) == (1.0, None))


async def test_an_async_handler_says_it_without_waiting(
    engine: Engine, url: str, registry: Registry, async_session: AsyncSession
) -> None:
    """And an AsyncSession reads it of a loaded job."""
    go_on = threading.Event()

    @task(registry=registry)
    async def export(ctx: AsyncJobContext) -> None:
        ctx.progress(0.25, "a quarter")
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    id = await asyncio.to_thread(add_one, engine, enqueue(export))
    with working(url, registry):
        await wait_until_async(lambda: said(engine, id)[0] == 0.25)
        job = await async_session.get_one(Job, id, options=[undefer(Job.progress), undefer(Job.progress_message)])
        go_on.set()
    assert (job.progress, job.progress_message) == (0.25, "a quarter")


def test_a_job_that_says_nothing_has_no_progress(engine: Engine, url: str, registry: Registry) -> None:
    @task(registry=registry)
    def quiet(ctx: JobContext) -> None: ...

    assert enqueue(quiet).progress is None
    id = add_one(engine, enqueue(quiet))
    drain(url, registry)
    assert said(engine, id) == (None, None)


def test_progress_stays_after_a_failure_and_is_gone_with_the_next_attempt(
    engine: Engine, url: str, registry: Registry
) -> None:
    """While it waits for its next attempt, the job says how far the last one came. So it does if it was rolled back."""
    go_on = threading.Event()

    @task(registry=registry)
    def export(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            ctx.session.execute(text("SELECT 1"))
            ctx.progress(0.7, "nearly")
            raise Retry(after=3600)
        assert go_on.wait(30)

    id = add_one(engine, enqueue(export))
    drain(url, registry)
    assert job_of(engine, id).status == JobStatus.QUEUED
    assert said(engine, id) == (0.7, "nearly")
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.job SET run_at = now()"))
    with working(url, registry):
        wait_until(lambda: job_of(engine, id).status == JobStatus.RUNNING)
        assert said(engine, id) == (None, None)
        go_on.set()


@pytest.mark.parametrize("outcome", ["completes", "is lost"])
def test_a_run_that_is_stale_writes_nothing(engine: Engine, url: str, registry: Registry, outcome: str) -> None:
    """Its job was claimed by another worker: what that one says stands."""
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @task(registry=registry)
    def export(ctx: JobContext) -> None:
        ctx.progress(0.1, "stale")
        started.set()
        assert go_on.wait(30)
        ctx.progress(0.9, "stale")
        if outcome == "is lost":
            wait_until(lambda: ctx.cancelled)
        ended.set()

    id = add_one(engine, enqueue(export))
    with working(url, registry) as worker:
        assert started.wait(30)
        wait_until(lambda: said(engine, id) == (0.1, "stale"))
        with engine.begin() as connection:
            connection.execute(text("UPDATE sa_jobqueue.job SET claim_token = claim_token + 1, claims = claims + 1"))
            connection.execute(
                update(Progress).values(
                    claim_token=Progress.claim_token + 1,
                    claims=Progress.claims + 1,
                    message="of the other",
                    fraction=0.5,
                )
            )
        notes = services_of(worker).runs.notes
        go_on.set()
        if outcome == "is lost":
            renew_now(worker)
        assert ended.wait(30)
        wait_until(lambda: not notes.any)
    assert said(engine, id) == (0.5, "of the other")


def test_the_jobs_of_a_worker_are_written_in_one_statement(engine: Engine, url: str, registry: Registry) -> None:
    """20 jobs say 50 things each: one row a job, and a few statements in all."""
    all_run, go_on = threading.Barrier(20 + 1), threading.Event()

    @task(registry=registry)
    def export(ctx: JobContext) -> None:
        all_run.wait(30)
        for page in range(50):
            ctx.progress(page / 50, f"page {page}")
        assert go_on.wait(30)

    ids = add(engine, *(enqueue(export) for _ in range(20)))
    written: list[int] = []

    def count(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO sa_jobqueue.job_progress"):
            written.append(cursor.rowcount)

    with working(url, registry, queues={"default": 20}) as worker:
        event.listen(services_of(worker).maintenance._connector.engine, "after_cursor_execute", count)
        all_run.wait(30)
        wait_until(lambda: {said(engine, id) for id in ids} == {(0.98, "page 49")})
        go_on.set()
    assert len(written) <= 10
    assert max(written) > 5


def test_what_is_no_fraction_is_refused(engine: Engine, url: str, registry: Registry) -> None:
    """With the value, and what was expected. The handler's own mistake is the failure of its attempt."""

    values: list[Any] = [-0.1, 1.1, float("nan"), float("inf"), 12, "0.5", True, None, object()]

    @task(registry=registry, max_attempts=1)
    def export(ctx: JobContext, number: int) -> None:
        ctx.progress(values[number])

    ids = add(engine, *(enqueue(export, number) for number in range(len(values))))
    drain(url, registry)
    for id in ids:
        (error,) = job_of(engine, id).errors
        assert error["type"].endswith("OptionError")
        assert "must be a number from 0 to 1, not " in error["message"]
        assert said(engine, id) == (None, None)


def test_what_rounds_to_the_ends_or_is_a_number_of_another_kind_is_taken(
    engine: Engine, url: str, registry: Registry
) -> None:
    """A message is cut, and cleaned of what PostgreSQL cannot store."""
    told = {0: -1e-12, 1: 1 + 1e-12, 2: Fraction(1, 2), 3: 1}

    @task(registry=registry)
    def export(ctx: JobContext, n: int) -> None:
        ctx.progress(told[n], ["a\0b", "\ud800", "x" * 2_000, '{"é", NULL\\}'][n])  # type: ignore[arg-type]

    @task(registry=registry, max_attempts=1)
    def wrong(ctx: JobContext) -> None:
        with pytest.raises(OptionError, match="must be a text, not 7"):
            ctx.progress(0.5, 7)  # type: ignore[arg-type]

    ids = add(engine, *(enqueue(export, n) for n in range(4)), enqueue(wrong))
    drain(url, registry)
    assert [said(engine, id) for id in ids] == [
        (0.0, "a\ufffdb"), (1.0, "\ufffd"), (0.5, "x" * 499 + "…"), (1.0, '{"é", NULL\\}'), (None, None),
    ]  # fmt: skip
    assert job_of(engine, ids[-1]).status == JobStatus.COMPLETED


def test_an_outage_keeps_the_last_word_only(engine: Engine, url: str, registry: Registry) -> None:
    """While the table cannot be written the handler goes on. One word of each job waits; afterwards the last is written."""
    go_on, told = threading.Event(), threading.Event()

    @task(registry=registry)
    def export(ctx: JobContext) -> None:
        for page in range(1_000):
            ctx.progress(page / 1_000, f"page {page}")
        told.set()
        assert go_on.wait(30)

    id = add_one(engine, enqueue(export))
    with engine.connect() as outside, working(url, registry) as worker:
        with outside.begin():
            outside.execute(text("LOCK TABLE sa_jobqueue.job_progress"))
            assert told.wait(30)
            assert len(services_of(worker).runs.notes._reports) <= 1
        with engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'sa-jobqueue worker' AND datname = current_database()"
                )
            )
        wait_until(lambda: said(engine, id) == (0.999, "page 999"))
        go_on.set()


def test_a_worker_that_may_not_write_it_goes_on(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """An old role's grants, for example. It says so, once, and what was said is dropped."""

    @task(registry=registry)
    def export(ctx: JobContext) -> None:
        ctx.progress(0.5)

    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "RAISE insufficient_privilege USING MESSAGE = 'not for you'; END $$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER refuse BEFORE INSERT ON sa_jobqueue.job_progress FOR EACH ROW EXECUTE FUNCTION public.refuse()"
            )
        )
    try:
        ids = add(engine, *(enqueue(export) for _ in range(5)))
        drain(url, registry)
        assert {job_of(engine, id).status for id in ids} == {JobStatus.COMPLETED}
        assert caplog.text.count("progress and log lines of jobs cannot be written") == 1
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER refuse ON sa_jobqueue.job_progress"))


def test_it_goes_with_its_job(engine: Engine, url: str, registry: Registry) -> None:
    """When that is pruned; and soon, if it was deleted by hand or at once."""

    @task(registry=registry, keep_logs=True)
    def export(ctx: JobContext) -> None:
        ctx.progress(0.5)
        ctx.logger.info("half")

    kept, pruned, by_hand = add(engine, *(enqueue(export) for _ in range(3)))
    drain(url, registry)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE sa_jobqueue.job SET purge_at = now() - interval '1 day' WHERE id = :id"), {"id": pruned}
        )
        connection.execute(text("DELETE FROM sa_jobqueue.job WHERE id = :id"), {"id": by_hand})
    assert rows(engine) == {kept, pruned, by_hand}
    with working(url, registry, prune_every=0.1):
        wait_until(lambda: rows(engine) == {kept})


def rows(engine: Engine) -> set[int]:
    with engine.connect() as connection:
        logs = connection.scalars(text("SELECT job_id FROM sa_jobqueue.job_log")).all()
        progress = connection.scalars(select(Progress.job_id)).all()
        assert sorted(logs) == sorted(progress)
        return set(progress)


def test_loading_a_job_does_not_read_it(engine: Engine, session: Session) -> None:
    """It is read when it is asked for."""
    id = add_one(engine, enqueue("a_task"))
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    job = session.get_one(Job, id)
    assert not any("job_progress" in one for one in seen)
    assert job.progress is None
    assert "job_progress" in seen[-1]
