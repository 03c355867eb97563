"""What a worker says of its jobs in the log of an application that set up logging by itself."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select

from sa_jobqueue import (
    AsyncJobContext,
    Discard,
    Job,
    JobContext,
    JobStatus,
    Registry,
    Retry,
    RetryPolicy,
    Snooze,
    enqueue,
    task,
)
from sa_jobqueue.models import WorkerRow
from tests.support.factory import make_job
from tests.support.nightly import crossed
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, job_of, long_healthy, working

HOSTILE = "no order\n12:00:00 INFO    all is well\x1b[2J"


class Tracker(logging.Handler):
    """Stands for an error tracker as Sentry, which makes an event of each record from ERROR on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.events: list[tuple[str, BaseException | None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append((record.getMessage(), record.exc_info[1] if record.exc_info else None))


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    handler, root = Tracker(), logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


def ends(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was said of how jobs ended."""
    return [
        one for one in caplog.records if one.name == "sa_jobqueue.worker.running.joblog" and "starts" not in one.msg
    ]


def test_nothing_that_a_job_brings_along_breaks_a_line_of_the_log(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the text of an exception, nor the name of a task that is not known, at any level."""

    @task(registry=registry, name="fails")
    def fails() -> None:
        raise LookupError(HOSTILE)

    add_one(engine, enqueue(fails))
    with engine.begin() as connection:
        make_job(connection, task=HOSTILE)
    with caplog.at_level(logging.DEBUG, "sa_jobqueue"):
        drain(url, registry)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("sa_jobqueue")]
    assert sum("all is well" in message for message in said) == 2
    assert all(message.isprintable() for message in said)


@pytest.mark.parametrize(("kind", "session"), crossed(["sync", "async"], [False, True]))
def test_a_final_failure_is_an_error_with_its_exception_and_a_retry_is_none(
    engine: Engine, url: str, registry: Registry, tracker: Tracker, kind: str, session: bool
) -> None:
    """An error tracker makes one event of it, with the exception's own traceback."""

    @task(registry=registry, name="sync")
    def fails(ctx: JobContext) -> None:
        if session:
            ctx.session.connection()
        raise LookupError("no such order")

    @task(registry=registry, name="async")
    async def fails_async(ctx: AsyncJobContext) -> None:
        if session:
            await ctx.session.connection()
        raise LookupError("no such order")

    handler: Any = fails if kind == "sync" else fails_async
    retried = add_one(engine, enqueue(handler.options(max_attempts=2)))
    drain(url, registry)
    assert job_of(engine, retried).is_retrying
    assert tracker.events == []
    final = add_one(engine, enqueue(handler.options(max_attempts=1)))
    drain(url, registry)
    ((message, error),) = tracker.events
    assert message.startswith(f"{kind}[{final}] failed in attempt 1 of 1, for good: LookupError: no such order (")
    assert isinstance(error, LookupError)
    assert error.__traceback__ is not None


def too_late(error: BaseException, attempt: int) -> None:
    return None


FINAL: dict[str, tuple[Callable[[], Any], str]] = {
    "discard": (lambda: Discard("hopeless"), "Discard: hopeless"),
    "last retry": (lambda: Retry(reason="once more"), "Retry: once more"),
}


@pytest.mark.parametrize(("name", "way"), crossed(FINAL, ["returned", "raised"]))
def test_whatever_ends_as_failed_is_one_error(
    engine: Engine, url: str, registry: Registry, tracker: Tracker, name: str, way: str
) -> None:
    """By the handler's own word, too."""
    make, reason = FINAL[name]

    @task(registry=registry, name="handler", max_attempts=1)
    async def handler() -> object:
        if way == "raised":
            raise make()
        return make()

    id = add_one(engine, enqueue(handler))
    drain(url, registry)
    assert job_of(engine, id).status == JobStatus.FAILED
    ((message, error),) = tracker.events
    assert message.startswith(f"handler[{id}] failed in attempt 1 of 1, for good: {reason}")
    assert (error is not None) is (way == "raised")


def test_arguments_that_do_not_fit_and_a_rule_without_retries_are_errors(
    engine: Engine, url: str, registry: Registry, tracker: Tracker
) -> None:
    """However many attempts are left."""

    @task(registry=registry, name="picky")
    def picky(n: int) -> None: ...

    @task(registry=registry, name="given up", retry=RetryPolicy(delay=too_late))
    def given_up() -> None:
        raise LookupError("no such order")

    picky_id, given_up_id = add(engine, enqueue("picky", n="five"), enqueue(given_up))
    drain(url, registry)
    assert sorted(message.partition(":")[0] for message, _ in tracker.events) == [
        f"given up[{given_up_id}] failed in attempt 1 of 10, for good",
        f"picky[{picky_id}] failed in attempt 1 of 10, for good",
    ]
    assert all(error is not None for _, error in tracker.events)


def test_a_timeout_of_a_thread_is_one_record_that_says_both(
    engine: Engine, url: str, registry: Registry, tracker: Tracker, caplog: pytest.LogCaptureFixture
) -> None:
    """What the thread raises later is not said: it counts for nothing."""
    end, ended = threading.Event(), threading.Event()

    @task(registry=registry, name="sleeps", timeout=0.3, max_attempts=1)
    def sleeps() -> None:
        end.wait(60)
        ended.set()
        raise LookupError("too late")

    id = add_one(engine, enqueue(sleeps))
    with working(url, registry):
        wait_until(lambda: job_of(engine, id).status == JobStatus.FAILED)
        end.set()
        wait_until(ended.is_set)
    ((message, error),) = tracker.events
    assert message.endswith("took longer than its timeout of 0.3 s; its thread may still run")
    assert error is not None
    assert "too late" not in caplog.text


def test_a_failure_is_said_with_its_task_the_next_attempt_and_the_place(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """The place is the last one in the application's own code, not in what it calls; extras are for machines."""

    @task(registry=registry, name="shop.send_receipt", max_attempts=5, retry=RetryPolicy(base=120, jitter=0))
    def send_receipt() -> None:
        re.compile("(")

    id = add_one(engine, enqueue(send_receipt))
    drain(url, registry)
    (record,) = ends(caplog)
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    assert re.fullmatch(
        rf"shop\.send_receipt\[{id}\] failed in attempt 1 of 5, again in 2 min: re\.(error|PatternError): missing \), .* "
        r"\(tests/integration/test_worker_logs\.py, line \d+, in send_receipt\)",
        record.getMessage(),
    )
    assert (record.__dict__["job_id"], record.__dict__["attempt"]) == (id, 1)
    assert 0 <= record.__dict__["duration"] < 60
    assert 0 <= record.__dict__["wait"] < 60


@pytest.mark.parametrize("how", ["log_jobs", "debug"])
def test_where_it_is_asked_for_each_end_is_said(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """How long it took and waited, whether it was committed by itself or written with others."""

    @task(registry=registry, name="plain")
    def plain() -> None: ...

    @task(registry=registry, name="with a session")
    async def with_session(ctx: AsyncJobContext) -> None:
        await ctx.session.connection()

    @task(registry=registry, name="snoozes")
    def snoozes() -> Snooze:
        return Snooze(7_200)

    add(engine, enqueue(plain), enqueue(with_session), enqueue(snoozes))
    caplog.set_level(logging.INFO if how == "log_jobs" else logging.DEBUG, "sa_jobqueue")
    drain(url, registry, log_jobs=how == "log_jobs")
    records = sorted(ends(caplog), key=lambda record: record.__dict__["job_id"])
    assert {record.levelname for record in records} == {"INFO" if how == "log_jobs" else "DEBUG"}
    for record, begin in zip(
        records, ["plain[1] completed in ", "with a session[2] completed in ", "snoozes[3] snoozed after "], strict=True
    ):
        assert re.fullmatch(
            rf"{re.escape(begin)}[\d.]+ m?s(, again in 2 h)? \(attempt 1 of 10, waited [\d.]+ m?s\)",
            record.getMessage(),
        )
        assert {"job_id", "task", "queue", "attempt", "duration", "wait"} <= record.__dict__.keys()


def test_by_default_only_failures_are_logged(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """By default only failures are logged."""

    @task(registry=registry, name="plain")
    def plain() -> None: ...

    add_one(engine, enqueue(plain))
    caplog.set_level(logging.INFO, "sa_jobqueue")
    drain(url, registry)
    assert ends(caplog) == []


@pytest.mark.parametrize(("rescues", "level"), [(0, "WARNING"), (4, "ERROR")])
def test_a_rescue_says_who_held_the_job_since_when_and_for_how_long_past_its_lease(
    engine: Engine, url: str, registry: Registry, caplog: pytest.LogCaptureFixture, rescues: int, level: str
) -> None:
    """In the log and in the job's errors; the last one, which fails the job, is an error."""

    @task(registry=registry, name="report")
    def report() -> None: ...

    worker = uuid.uuid4()
    with engine.begin() as connection:
        connection.execute(
            insert(WorkerRow).values(id=worker, host="web-1", pid=4711, queues=["q"], concurrency=4, version="1")
        )
        id = make_job(
            connection, "running", task="report", worker=str(worker), rescues=rescues,
            claimed_at=timedelta(minutes=-3), lease_expires_at=timedelta(minutes=-2.5),
        )  # fmt: skip
        claimed = connection.scalar(select(func.to_char(func.timezone("UTC", Job.claimed_at), "YYYY-MM-DD HH24:MI:SS")))
    long_healthy(engine)
    with working(url, registry):
        wait_until(lambda: job_of(engine, id).is_finished)
    held = f"worker web-1:4711, which claimed it at {claimed} UTC"
    (record,) = (one for one in caplog.records if "rescued from" in one.msg)
    message = record.getMessage()
    assert message.startswith(f"report[{id}] rescued from {held}; its lease ran out 2.")
    assert message.endswith("; it is failed for good") is (level == "ERROR")
    assert (record.levelname, record.__dict__["worker"]) == (level, str(worker))
    (entry,) = job_of(engine, id).errors
    assert f"the lease of {held}, had run out 2." in entry["message"]


def test_a_worker_is_named_by_its_host_and_process_and_says_when_it_did_nothing(
    url: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """The id that the tables have is a field of the record, and in the text at DEBUG."""
    place = f"{socket.gethostname()}:{os.getpid()}"
    for level in (logging.INFO, logging.DEBUG):
        caplog.set_level(level, "sa_jobqueue")
        caplog.clear()
        worker = drain(url, registry)
        said = [record for record in caplog.records if record.name == "sa_jobqueue.worker.serving"]
        named = place if level == logging.INFO else f"{place} ({worker.id})"
        assert [record.getMessage() for record in said] == [
            f"worker {named} serves default=4",
            f"worker {named} has left: no jobs",
        ]
        assert {record.__dict__["worker"] for record in said} == {str(worker.id)}


def test_a_filter_of_logs_that_raises_does_not_change_what_comes_of_a_job(
    engine: Engine, url: str, registry: Registry
) -> None:
    """Not even one that raises SystemExit."""

    def wrong(record: logging.LogRecord) -> bool:
        raise SystemExit("a filter that is wrong")

    @task(registry=registry, name="fails", max_attempts=1)
    def fails() -> None:
        raise LookupError("no such order")

    @task(registry=registry, name="completes")
    async def completes() -> None: ...

    ids = add(engine, enqueue(fails), enqueue(completes))
    filtered = logging.getLogger("sa_jobqueue.worker.running.joblog")
    filtered.addFilter(wrong)
    try:
        drain(url, registry, log_jobs=True)
    finally:
        filtered.removeFilter(wrong)
    failed, completed = (job_of(engine, id) for id in ids)
    assert (failed.status, failed.errors[-1]["type"]) == (JobStatus.FAILED, "LookupError")
    assert completed.status == JobStatus.COMPLETED
