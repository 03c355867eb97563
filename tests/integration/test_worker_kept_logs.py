"""`@task(keep_logs=True)`: the last lines that a handler logs can be read beside its job, and no line can make it fail."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from sqlalchemy import Engine, select, text

from sa_jobqueue import AsyncJobContext, Job, JobContext, JobStatus, Registry, Retry, Snooze, enqueue, task
from sa_jobqueue.errors import TaskError
from sa_jobqueue.models import LogPart
from sa_jobqueue.statements import job_logs
from sa_jobqueue.worker.running.notes import MAX_LINE, MAX_LOG
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, job_of, long_healthy, services_of, working


def lines(engine: Engine, id: int, attempt: int | None = None) -> list[tuple[int, str, str]]:
    with engine.connect() as connection:
        found = connection.execute(job_logs(id, attempt=attempt)).all()
    assert [row.at for row in found] == sorted(row.at for row in found)
    return [(row.attempt, row.level, row.message) for row in found]


def texts(engine: Engine, id: int) -> list[str]:
    return [message for _, _, message in lines(engine, id)]


@pytest.mark.parametrize("kind", ["sync", "async", "session"])
def test_the_lines_of_each_attempt_are_kept(engine: Engine, url: str, registry: Registry, kind: str) -> None:
    """With level and time, whatever the application's log shows; of an attempt that fails, too."""

    def work(ctx: JobContext | AsyncJobContext) -> None:
        ctx.logger.info("begin %s", ctx.attempt)
        ctx.logger.debug("not kept")
        ctx.logger.warning("careful")
        if ctx.attempt == 1:
            raise Retry(after=0)

    @task(registry=registry, name="sync", keep_logs=True)
    def sync(ctx: JobContext) -> None:
        work(ctx)

    @task(registry=registry, name="async", keep_logs=True)
    async def in_loop(ctx: AsyncJobContext) -> None:
        work(ctx)

    @task(registry=registry, name="session", keep_logs=True)
    def with_session(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))
        work(ctx)

    logging.getLogger("sa_jobqueue.job").setLevel(logging.ERROR)
    try:
        id = add_one(engine, enqueue(kind))
        drain(url, registry)
    finally:
        logging.getLogger("sa_jobqueue.job").setLevel(logging.NOTSET)
    assert lines(engine, id) == [
        (1, "INFO", "begin 1"),
        (1, "WARNING", "careful"),
        (2, "INFO", "begin 2"),
        (2, "WARNING", "careful"),
    ]
    assert lines(engine, id, attempt=2) == lines(engine, id)[2:]


def test_a_task_that_keeps_no_lines_has_none(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """They go to the application's log, and so do those that are kept: with the job's fields, and the place in the handler."""

    @task(registry=registry)
    def plain(ctx: JobContext) -> None:
        assert ctx.logger.logger is logging.getLogger("sa_jobqueue.job")
        ctx.logger.info("from plain")

    @task(registry=registry, keep_logs=3)
    def kept(ctx: JobContext) -> None:
        ctx.logger.info("from kept")

    caplog.set_level(logging.INFO, "sa_jobqueue.job")
    first, second = add(engine, enqueue(plain), enqueue(kept))
    drain(url, registry)
    assert texts(engine, first) == []
    assert texts(engine, second) == ["from kept"]
    records: Any = {record.getMessage(): record for record in caplog.records if record.name == "sa_jobqueue.job"}
    assert {said: (record.job_id, record.funcName) for said, record in records.items()} == {
        "from plain": (first, "plain"), "from kept": (second, "kept"),
    }  # fmt: skip


def test_lines_are_there_while_the_job_runs_and_the_last_ones_stay(
    engine: Engine, url: str, registry: Registry
) -> None:
    """In several parts, of which the oldest go: at most twice as many lines as were asked for are there at any time."""
    steps = [threading.Event() for _ in range(4)]

    @task(registry=registry, keep_logs=10)
    def work(ctx: JobContext) -> None:
        for number, step in enumerate(steps):
            for line in range(7):
                ctx.logger.info("%d", 7 * number + line)
            assert step.wait(30)

    id = add_one(engine, enqueue(work))
    with working(url, registry):
        for number, step in enumerate(steps):
            wait_until(lambda number=number: texts(engine, id)[-1:] == [str(7 * number + 6)])
            step.set()
        wait_until(lambda: job_of(engine, id).status == JobStatus.COMPLETED)
    found = [int(one) for one in texts(engine, id)]
    assert found == list(range(found[0], 28))
    assert 10 <= len(found) < 20


def test_bounds_hold_in_lines_and_characters(engine: Engine, url: str, registry: Registry) -> None:
    """Of a burst the last lines are kept, of a long line its beginning, of very long ones as many as there is room for."""

    @task(registry=registry, keep_logs=5)
    def burst(ctx: JobContext) -> None:
        for number in range(10_000):
            ctx.logger.info("%d", number)

    @task(registry=registry, keep_logs=1_000)
    def large(ctx: JobContext) -> None:
        for _ in range(200):
            ctx.logger.info("x" * 1_000_000)

    first, second = add(engine, enqueue(burst), enqueue(large))
    drain(url, registry)
    assert texts(engine, first) == ["9995", "9996", "9997", "9998", "9999"]
    found = texts(engine, second)
    assert {len(one) for one in found} == {MAX_LINE}
    assert MAX_LOG - MAX_LINE <= sum(map(len, found)) <= 2 * MAX_LOG


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_no_line_makes_a_handler_fail(engine: Engine, url: str, registry: Registry) -> None:
    """Not one with NUL, lone surrogates, arguments that do not fit, objects without a text, or exceptions."""

    @task(registry=registry, keep_logs=True)
    def work(ctx: JobContext) -> None:
        ctx.logger.info('a\0b \ud800 é \\ " { } \n %s', "'")
        ctx.logger.info("%d", "no number")
        ctx.logger.info("%s %s", 1)  # noqa: PLE1206
        ctx.logger.info("%s", Unprintable())
        ctx.logger.info(Unprintable())  # type: ignore[arg-type]
        try:
            raise ValueError("bad\0")
        except ValueError:
            ctx.logger.exception("failed")

    id = add_one(engine, enqueue(work))
    logging.raiseExceptions = False
    try:
        drain(url, registry)
    finally:
        logging.raiseExceptions = True
    assert job_of(engine, id).status == JobStatus.COMPLETED
    found = texts(engine, id)
    assert found[0] == "a\ufffdb \ufffd é \\ \" { } \n '"
    assert found[1:5] == [
        "<a line that cannot be formatted: TypeError> %d",
        "<a line that cannot be formatted: TypeError> %s %s",
        "<a line that cannot be formatted: RuntimeError> %s",
        "<a line that cannot be formatted: RuntimeError> ",
    ]
    assert found[5].startswith("failed\nTraceback (most recent call last):\n")
    assert found[5].endswith("ValueError: bad\ufffd")


def test_the_lines_of_the_last_20_claims_are_kept(engine: Engine, url: str, registry: Registry) -> None:
    """Also if no attempt is spent, as by a job that snoozes again and again."""

    @task(registry=registry, keep_logs=True)
    def look(ctx: JobContext) -> Snooze | None:
        ctx.logger.info("%s", ctx.job_id)
        with engine.connect() as connection:
            claims = connection.scalar(select(Job.claims))
        return Snooze(0) if claims is not None and claims < 25 else None

    id = add_one(engine, enqueue(look))
    with working(url, registry):
        wait_until(lambda: job_of(engine, id).status == JobStatus.COMPLETED)
    assert len(lines(engine, id)) == 20


def test_a_claim_that_is_lost_writes_no_more_lines(engine: Engine, url: str, registry: Registry) -> None:
    """What it had written stays, and the lines of the next claim come after it."""
    started, go_on = threading.Event(), threading.Event()

    @task(registry=registry, keep_logs=True)
    def work(ctx: JobContext) -> None:
        ctx.logger.info("before")
        started.set()
        assert go_on.wait(30)
        ctx.logger.info("after")

    id = add_one(engine, enqueue(work))
    with working(url, registry) as worker:
        assert started.wait(30)
        wait_until(lambda: texts(engine, id) == ["before"])
        with engine.begin() as connection:
            connection.execute(text("UPDATE sa_jobqueue.job SET claim_token = claim_token + 1, claims = claims + 1"))
        go_on.set()
        notes = services_of(worker).runs.notes
        wait_until(lambda: not notes.any)
    assert texts(engine, id) == ["before"]


def test_a_table_that_is_locked_holds_up_no_job(engine: Engine, url: str, registry: Registry) -> None:
    """Its lines wait, as many as are kept, and are written afterwards."""

    @task(registry=registry, keep_logs=5)
    def work(ctx: JobContext) -> None:
        for number in range(1_000):
            ctx.logger.info("%d", number)

    ids = add(engine, *(enqueue(work) for _ in range(3)))
    with engine.connect() as outside, working(url, registry):
        with outside.begin():
            outside.execute(text("LOCK TABLE sa_jobqueue.job_log"))
            wait_until(lambda: {job_of(engine, id).status for id in ids} == {JobStatus.COMPLETED})
        wait_until(lambda: all(texts(engine, id) == ["995", "996", "997", "998", "999"] for id in ids))


PROGRAM = """
import os, sys, time
from sa_jobqueue import JobContext, Worker, task

@task(name="work", keep_logs=True)
def work(ctx: JobContext) -> None:
    ctx.logger.info("written before the kill")
    ctx.progress(0.5, "half")
    time.sleep(600)

Worker(sys.argv[1], {"default": 1}).run()
"""


def test_the_lines_of_a_process_that_was_killed_are_there(engine: Engine, url: str, registry: Registry) -> None:
    """Up to the last write. The attempt after the rescue has its own, and they come second."""

    @task(registry=registry, name="work", keep_logs=True)
    def work(ctx: JobContext) -> None:
        ctx.logger.info("again")

    id = add_one(engine, enqueue("work"))
    killed = subprocess.Popen([sys.executable, "-c", PROGRAM, url], env=dict(os.environ))
    try:
        wait_until(lambda: texts(engine, id) == ["written before the kill"])
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait(30)
    assert job_of(engine, id).status == JobStatus.RUNNING
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.job SET lease_expires_at = now() - interval '1 hour'"))
    long_healthy(engine)
    with working(url, registry):
        wait_until(lambda: job_of(engine, id).status == JobStatus.COMPLETED)
        wait_until(lambda: lines(engine, id) == [(1, "INFO", "written before the kill"), (1, "INFO", "again")])


def test_lines_of_a_job_that_is_not_kept_are_not_left_behind(engine: Engine, url: str, registry: Registry) -> None:
    """With retain=0 its row goes at its end, before its last lines could be written; earlier ones go soon."""
    started, go_on = threading.Event(), threading.Event()

    @task(registry=registry, keep_logs=True, retain=0)
    def work(ctx: JobContext) -> None:
        ctx.logger.info("early")
        started.set()
        assert go_on.wait(30)
        ctx.logger.info("late")

    id = add_one(engine, enqueue(work))
    with working(url, registry, prune_every=0.1):
        assert started.wait(30)
        wait_until(lambda: texts(engine, id) == ["early"])
        go_on.set()

        def parts() -> int:
            with engine.connect() as connection:
                return len(connection.scalars(select(LogPart.part)).all())

        wait_until(lambda: parts() == 0)


def test_what_is_no_number_of_lines_is_refused(registry: Registry) -> None:
    wrong: list[Any] = [0, -1, 1_001, 1.5, "all", None]
    for value in wrong:
        with pytest.raises(TaskError, match="keep_logs must be an integer from 1 to 1,000, not "):
            task(registry=registry, keep_logs=value)
