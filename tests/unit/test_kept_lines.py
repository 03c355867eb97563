"""Lines of `ctx.logger` on their way from a handler to the statement that writes them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sa_jobqueue.arguments.context import ClaimedJob, JobContext
from sa_jobqueue.rules.lifecycle import Rules, decide
from sa_jobqueue.rules.outcomes import Completed
from sa_jobqueue.worker.running import notes
from sa_jobqueue.worker.running.notes import JobReports

SHOWN = logging.getLogger("sa_jobqueue.job")


@pytest.fixture
def collected() -> JobReports:
    return JobReports()


@pytest.fixture(params=[logging.INFO, logging.ERROR], ids=logging.getLevelName)
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    """What the application's log shows: the lines, too, or only errors. No handler sees them."""
    SHOWN.setLevel(request.param)
    SHOWN.addFilter(_nothing)  # what is logged here cannot be encoded
    yield request.param
    SHOWN.removeFilter(_nothing)
    SHOWN.setLevel(logging.NOTSET)


def _nothing(_: logging.LogRecord) -> bool:
    return False


def claimed(id: int = 1) -> ClaimedJob:
    return ClaimedJob(id, id, "default", "a_task", 4, 0.0, 1, 10, 0, "{}", "{}", 0.0)


def context(collected: JobReports, job: ClaimedJob) -> JobContext:
    return JobContext(job, pytest.fail, lambda: False, collected, 100, pytest.fail)


def end(collected: JobReports, *jobs: ClaimedJob) -> None:
    collected.end([decide(job, Completed(), Rules(), random=0.5) for job in jobs], applied=True)


def written(collected: JobReports) -> dict[int, list[list[Any]]]:
    """By job, what is written of its lines."""
    return {part.id: json.loads(part.lines) for part in collected.take(all=True).logs}


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError


LINES: list[tuple[tuple[Any, ...], str]] = [
    (("plain 100 %",), "plain 100 %"),
    (("%s of %d", "a", 3), "a of 3"),
    (("%(name)s", {"name": "b"}), "b"),
    (("%s", {}), "{}"),
    (("%s", ("a", "tuple")), "('a', 'tuple')"),
    ((7,), "7"),
    (("%d", "no number"), "<a line that cannot be formatted: TypeError> %d"),
    (("%s", Unprintable()), "<a line that cannot be formatted: RuntimeError> %s"),
    (("a\0b\ud800c\\u0000",), "a\ufffdb\ufffdc\\u0000"),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_line_says_the_same_whether_the_log_shows_it_or_not(
    collected: JobReports, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text, its level and its time."""
    monkeypatch.setattr(
        logging, "raiseExceptions", False
    )  # a line that cannot be formatted is shown by the log's handlers
    job, before = claimed(), time.monotonic()
    logger = context(collected, job).logger
    for given, _ in LINES:
        logger.warning(*given) if level == logging.ERROR else logger.info(*given)
    try:
        raise KeyError("why")
    except KeyError:
        logger.info("raised", exc_info=True)
    end(collected, job)
    lines = written(collected)[1]
    assert [text for _, _, text in lines[:-1]] == [text for _, text in LINES]
    assert {name for _, name, _ in lines[:-1]} == {"WARNING" if level == logging.ERROR else "INFO"}
    assert lines[-1][2].startswith("raised\n")
    assert lines[-1][2].endswith("KeyError: 'why'")
    times = [before, *(at for at, _, _ in lines), time.time()]
    assert times == sorted(times)


def test_a_record_that_the_log_shows_knows_its_caller(collected: JobReports, caplog: pytest.LogCaptureFixture) -> None:
    """And the job, and what the call itself added."""
    with caplog.at_level(logging.INFO):
        context(collected, claimed(5)).logger.info("one", extra={"more": 1})
    (record,) = caplog.records
    assert (record.funcName, record.filename) == (
        "test_a_record_that_the_log_shows_knows_its_caller", "test_kept_lines.py"
    )  # fmt: skip
    assert (record.__dict__["job_id"], record.__dict__["more"]) == (5, 1)


def test_a_factory_of_the_applications_makes_the_records(collected: JobReports) -> None:
    """It may change what they say."""

    class Shouting(logging.LogRecord):
        def getMessage(self) -> str:
            return super().getMessage().upper()

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Shouting)
    try:
        context(collected, job := claimed()).logger.info("quiet")
    finally:
        logging.setLogRecordFactory(before)
    end(collected, job)
    assert [text for _, _, text in written(collected)[1]] == ["QUIET"]


def test_of_lines_that_wait_the_oldest_jobs_lose_theirs(collected: JobReports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the database is away; but not for what was written meanwhile."""
    monkeypatch.setattr(notes, "_MAX_WAITING", 30)

    def say(ids: range) -> None:
        for job in map(claimed, ids):
            context(collected, job).logger.info("ten letter")
            end(collected, job)

    say(range(3))
    batch = collected.take(all=True)
    assert [part.id for part in batch.logs] == [0, 1, 2]
    collected.settle(batch, set(), {(part.id, part.token) for part in batch.logs})
    say(range(3, 6))
    say(range(6, 8))
    assert list(written(collected)) == [5, 6, 7]
