"""One poisoned row in a batch of 1,000: it fails alone, the 999 others complete, and the log says which it was."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select

from sa_jobqueue import AsyncJobContext, Job, JobContext, JobStatus, Registry, RetryPolicy, enqueue, task
from sa_jobqueue.statements import job_logs
from tests.support.factory import TABLE, row, unfolding
from tests.support.nightly import crossed
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, job_of, services_of, working

BATCH = 1_000


def fill(engine: Engine) -> int:
    """1,000 jobs; the id of the one in the middle."""
    with engine.begin() as connection:
        jobs = [{"task": "runs", "args": {"n": n}} for n in range(BATCH)]
        ids = connection.scalars(insert(TABLE).returning(TABLE.c.id, sort_by_parameter_order=True), jobs).all()
        return int(ids[BATCH // 2])


def assert_it_failed_alone(engine: Engine, poisoned: int, said: str, log: str) -> None:
    with engine.connect() as connection:
        counts = dict(connection.execute(select(TABLE.c.status, func.count()).group_by(TABLE.c.status)).all())  # type: ignore[arg-type]
        assert counts == {JobStatus.COMPLETED: BATCH - 1, JobStatus.FAILED: 1}
        bad = row(connection, poisoned)
        assert bad.status == JobStatus.FAILED
        assert said in bad.errors[-1]["message"]
        attempts = connection.scalar(select(func.sum(TABLE.c.attempt)).where(TABLE.c.id != poisoned))
        assert attempts == BATCH - 1
    lines = [line for line in log.splitlines() if f"job {poisoned}" in line or f"[{poisoned}]" in line]
    assert lines, "the log does not say which"


def run(engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, **options: Any) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue")
    drain(url, registry, **{"queues": {"default": BATCH}, "listen": False, "lease": 60.0, **options})


@pytest.mark.parametrize(
    "args", ['{"n": "five"}', "{}", "[5]", "null", '{"n": 5, "m": 6}', '{"n": 1.5}', '{"n": {"n": 5}}'], ids=str
)
def test_arguments_that_do_not_fit(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, args: str
) -> None:
    """Written by another program, or for another release's handler."""

    @task(registry=registry, name="runs")
    async def runs(n: int) -> None: ...

    poisoned = fill(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sa_jobqueue.job SET args = %s::jsonb WHERE id = %s", (args, poisoned))
    run(engine, url, registry, caplog)
    assert_it_failed_alone(engine, poisoned, "the stored arguments do not fit the handler", caplog.text)


@pytest.mark.parametrize(("column", "slots"), [("args", BATCH), ("args", 20), ("meta", 20)])
@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (700, "91,702,107"),
        # Each takes the server seconds.
        pytest.param(
            9_000, "cannot be turned into text, of which at most 67,108,864 bytes are read", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_row_that_unfolds(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, numbers: int, said: str, column: str,
    slots: int,
) -> None:  # fmt: skip
    """A few kilobytes that are 90 MB as text, or more than a server can send; claimed by itself or with outcomes."""

    @task(registry=registry, name="runs")
    async def runs(n: int) -> None: ...

    poisoned = fill(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET {column} = {unfolding(numbers)} WHERE id = {poisoned}")
    run(engine, url, registry, caplog, queues={"default": slots})
    assert "the database does not answer" not in caplog.text
    with engine.begin() as connection:  # so that it can be looked at
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.job SET {column} = '{{}}' WHERE id = {poisoned}")
    assert_it_failed_alone(engine, poisoned, said, caplog.text)


@pytest.mark.parametrize(
    ("raises", "kind"), crossed(["P0001", "22003", "23514", "SHOP1"], ["no session", "session", "async session"])
)
def test_an_outcome_that_the_database_refuses(
    engine: Engine, database_url: str, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, kind: str, raises: str
) -> None:  # fmt: skip
    """By a trigger of the application's, whether the batch writer completes the job or its own transaction."""
    if kind == "no session":

        @task(registry=registry, name="runs")
        async def runs(n: int) -> None: ...

    elif kind == "session":

        @task(registry=registry, name="runs", max_attempts=1)
        def runs_session(ctx: JobContext, n: int) -> None:
            if n == BATCH // 2:
                ctx.session.execute(select(1))

    else:

        @task(registry=registry, name="runs", max_attempts=1)
        async def runs_async(ctx: AsyncJobContext, n: int) -> None:
            if n == BATCH // 2:
                await ctx.session.execute(select(1))

    poisoned = fill(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sa_jobqueue.job SET max_attempts = 1")
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '{raises}'; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW"
            f" WHEN (old.id = {poisoned} AND new.status = 'completed') EXECUTE FUNCTION refuse()"
        )
    run(engine, url, registry, caplog)
    assert_it_failed_alone(engine, poisoned, "not this one", caplog.text)


def test_an_error_in_letters_that_the_database_lacks_costs_no_other_attempt(
    engine: Engine, database_url: str, url: str, registry: Registry
) -> None:
    """As in one whose encoding is LATIN1. The text is kept without them."""
    attempts: list[int] = []

    @task(registry=registry, name="runs", max_attempts=3, retry=RetryPolicy(base=0))
    def runs(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("5 € zu wenig")

    with engine.begin() as connection:
        connection.exec_driver_sql(
            "ALTER TABLE sa_jobqueue.job ADD CHECK (octet_length(errors::text) = char_length(errors::text))"
        )
    id = add_one(engine, enqueue(runs))
    drain(url, registry)
    job = job_of(engine, id)
    assert (job.status, attempts) == (JobStatus.COMPLETED, [1, 2, 3])
    assert [error["message"] for error in job.errors] == ["5 ? zu wenig"] * 2


def test_what_a_job_says_in_letters_that_the_database_lacks_takes_no_other_along(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """They are written together. The text is kept without these letters; one that cannot be kept at all is left out."""
    contexts: dict[int, JobContext] = {}
    go_on = threading.Event()

    @task(registry=registry, name="says", keep_logs=True)
    def says(ctx: JobContext) -> None:
        contexts[ctx.job_id] = ctx
        assert go_on.wait(30)

    with engine.begin() as connection:
        for table, column in (("job_progress", "message"), ("job_log", "lines::text")):
            connection.exec_driver_sql(
                f"ALTER TABLE sa_jobqueue.{table} ADD CHECK ({column} !~ '€'), ADD CHECK ({column} !~ 'never')"
            )
    ids = add(engine, *(enqueue(says) for _ in range(4)))
    said = dict(zip(ids, ["für", "5 €", "never", "naïve"], strict=True))
    with working(url, registry) as worker:
        wait_until(lambda: len(contexts) == len(ids))
        with services_of(worker).runs.notes._lock:  # until all have spoken, none is written
            for id, ctx in contexts.items():
                ctx.progress(0.5, said[id])
                ctx.logger.info(said[id])
        wait_until(lambda: "cannot be written" in caplog.text)
        go_on.set()
    kept = {**said, ids[1]: "5 ?"}
    del kept[ids[2]]
    with engine.connect() as connection:
        seen = connection.execute(select(Job.id, Job.progress_message).where(Job.progress.is_not(None))).all()
        logged = {id: [line.message for line in connection.execute(job_logs(id))] for id in ids}
    assert {row.id: row.progress_message for row in seen} == kept
    assert logged == {id: [kept[id]] if id in kept else [] for id in ids}


def test_a_row_that_takes_no_outcome_at_all(
    engine: Engine, database_url: str, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its completion nor its failure can be written: the others are done, and the log says which is not."""

    @task(registry=registry, name="runs")
    async def runs(n: int) -> None: ...

    poisoned = fill(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'not this one'; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE UPDATE ON sa_jobqueue.job FOR EACH ROW"
            f" WHEN (old.id = {poisoned} AND old.status = 'running') EXECUTE FUNCTION refuse()"
        )

    def others_are_done() -> bool:
        with engine.connect() as connection:
            done = select(func.count()).where(TABLE.c.status == JobStatus.COMPLETED)
            return connection.scalar(done) == BATCH - 1

    caplog.set_level(logging.ERROR, "sa_jobqueue")
    with working(url, registry, queues={"default": BATCH}, listen=False, lease=60.0) as worker:
        wait_until(others_are_done)
        wait_until(lambda: f"job {poisoned}: its outcome cannot be written" in caplog.text)
        wait_until(lambda: worker.state().running == 0)
