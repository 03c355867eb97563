"""What Sentry is told of jobs, in processes of their own: the SDK changes the process that it is started in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.commands import run_command

ENQUEUE = (sys.executable, "-m", "tests.support.reported")
WORK = ("work", "--app", "tests.support.reported:registry", "--drain", "--poll", "0.1")

Report = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def report(engine: Engine, url: str, tmp_path: Path) -> Report:
    """Enqueue these tasks, run them, and return what was reported."""

    def run(*tasks: str, **options: Any) -> list[dict[str, Any]]:
        env = {"REPORTED": str(tmp_path / "reported"), "REPORTED_OPTIONS": json.dumps(options)}
        for done in (run_command(*tasks, url=url, env=env, command=ENQUEUE), run_command(*WORK, url=url, env=env)):
            assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in (tmp_path / "reported").read_text().splitlines()]

    return run


def events(found: list[dict[str, Any]], kind: str = "event", task: str | None = None) -> list[dict[str, Any]]:
    return [one for one in found if one["type"] == kind and (task is None or one.get("tags", {}).get("task") == task)]


def test_each_failure_is_reported_once_and_within_its_trace(report: Report) -> None:
    """What is reported of an application with the default options."""
    found = report("sync", "async", "child", "late", "says", "fits", "outcomes")
    assert len(events(found)) == 6
    a_job_that_has_failed_is_one_event(found)
    a_trace_goes_from_the_request_to_each_attempt(found)
    a_handler_that_is_given_up_at_its_timeout_is_reported(found)
    what_a_handler_reports_itself_has_the_tags_of_its_job(found)
    a_job_whose_arguments_do_not_fit_is_reported_by_the_workers_log(found)
    outcomes_are_no_errors_in_their_transactions(found)


def a_job_that_has_failed_is_one_event(found: list[dict[str, Any]]) -> None:
    """Of handlers of each kind. Its attempt before the last is none, and nor is the line that the worker logs of it."""
    for number, task in enumerate(("sync", "async", "child"), 1):
        (event,) = events(found, task=task)
        assert event["tags"].items() >= {"task": task, "queue": "default", "job_id": str(number)}.items()
        assert event["fingerprint"] == ["sa_jobqueue", task, "LookupError"]
        assert (event["level"], event["transaction"]) == ("error", task)
        assert event["contexts"]["job"].items() >= {"attempt": 2, "max_attempts": 2, "rescues": 0}.items()
        (error,) = event["exception"]["values"]
        assert (error["type"], error["value"]) == ("LookupError", "no such order")
        assert error["mechanism"]["type"] == "sa_jobqueue"
        assert error["stacktrace"]["frames"][-1]["module"] == "tests.support.reported"
    (event,) = events(found, task="sync")
    assert [one["message"] for one in event["breadcrumbs"]["values"] if one.get("message") == "a step"] == ["a step"]


def a_trace_goes_from_the_request_to_each_attempt(found: list[dict[str, Any]]) -> None:
    """With a span of the enqueueing in between; the event is in it, too."""
    request, *others = events(found, "transaction")
    attempts = [one for one in others if one["transaction"] == "sync"]
    trace = request["contexts"]["trace"]
    (publish,) = (span for span in request["spans"] if span["description"] == "sync")
    assert publish["op"] == "queue.publish"
    assert (
        publish["data"].items() >= {"messaging.destination.name": "default", "messaging.system": "sa_jobqueue"}.items()
    )
    assert len(attempts) == 2
    for retries, attempt in enumerate(attempts):
        context = attempt["contexts"]["trace"]
        assert (context["trace_id"], context["parent_span_id"]) == (trace["trace_id"], publish["span_id"])
        assert (context["op"], context["status"]) == ("queue.process", "internal_error")
        assert (
            context["data"].items() >= {"messaging.message.retry.count": retries, "messaging.message.id": "1"}.items()
        )
    (event,) = events(found, task="sync")
    assert event["contexts"]["trace"]["trace_id"] == trace["trace_id"]


def a_handler_that_is_given_up_at_its_timeout_is_reported(found: list[dict[str, Any]]) -> None:
    """By the thread that gives it up; with its tags."""
    (event,) = events(found, task="late")
    assert event["exception"]["values"][-1]["type"] == "HandlerTimeout"


def what_a_handler_reports_itself_has_the_tags_of_its_job(found: list[dict[str, Any]]) -> None:
    """It is not grouped with failures."""
    (event,) = events(found, task="says")
    assert event["logentry"]["message"] == "a line of its own"
    assert "fingerprint" not in event


def a_job_whose_arguments_do_not_fit_is_reported_by_the_workers_log(found: list[dict[str, Any]]) -> None:
    """Its handler was not called, so there is no attempt to report."""
    (event,) = (one for one in events(found) if "task" not in one.get("tags", {}))
    assert "failed in attempt 1" in event["logentry"]["message"] % tuple(event["logentry"]["params"])
    assert event["logger"] == "sa_jobqueue.worker.running.joblog"


def outcomes_are_no_errors_in_their_transactions(found: list[dict[str, Any]]) -> None:
    """Nor are they events: that is the number of events above."""
    outcomes = [one for one in events(found, "transaction") if one["transaction"] == "outcomes"]
    assert len(outcomes) == 3
    assert {one["contexts"]["trace"].get("status") for one in outcomes} <= {None, "ok"}


@pytest.mark.nightly
def test_attempts_that_are_retried_are_reported_if_that_is_asked_for(report: Report) -> None:
    """As warnings; both belong to one issue. Outcomes are still no errors."""
    found = report("sync", "outcomes", every_failure=True, trace=False)
    # The next attempt may have ended on another thread before the end of the first is told.
    first, second = sorted(events(found), key=lambda event: event["contexts"]["job"]["attempt"])
    assert first["tags"]["task"] == second["tags"]["task"] == "sync"
    assert (first["level"], second["level"]) == ("warning", "error")
    assert first["fingerprint"] == second["fingerprint"]
    without_traces_there_are_events_alone(found)


def without_traces_there_are_events_alone(found: list[dict[str, Any]]) -> None:
    """And nothing in the job's meta."""
    assert [one["transaction"] for one in events(found, "transaction")] == ["POST /orders"]
    assert events(found, "transaction")[0]["spans"] == []


def test_each_job_of_a_batch_that_has_failed_is_an_event(report: Report) -> None:
    """With the tags of the job; the batch is one transaction."""
    found = report("batched", "batched")
    (event,) = events(found, task="batched")
    assert event["tags"]["job_id"] == "1"
    assert event["contexts"]["batch"].items() >= {"jobs": [1, 2], "size": 2}.items()
    assert len([one for one in events(found, "transaction") if one["transaction"] == "batched"]) == 1
