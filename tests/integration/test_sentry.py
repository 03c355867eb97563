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


def test_a_job_that_has_failed_is_one_event(report: Report) -> None:
    """Of handlers of each kind. Its attempt before the last is none, and nor is the line that the worker logs of it."""
    found = report("sync", "async", "child")
    assert len(events(found)) == 3
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


def test_attempts_that_are_retried_are_reported_if_that_is_asked_for(report: Report) -> None:
    """As warnings; both belong to one issue."""
    found = events(report("sync", every_failure=True), task="sync")
    # The next attempt may have ended on another thread before the end of the first is told.
    first, second = sorted(found, key=lambda event: event["contexts"]["job"]["attempt"])
    assert (first["level"], second["level"]) == ("warning", "error")
    assert first["fingerprint"] == second["fingerprint"]


def test_a_trace_goes_from_the_request_to_each_attempt(report: Report) -> None:
    """With a span of the enqueueing in between; the event is in it, too."""
    found = report("sync")
    request, *attempts = events(found, "transaction")
    trace = request["contexts"]["trace"]
    (publish,) = request["spans"]
    assert (publish["op"], publish["description"]) == ("queue.publish", "sync")
    assert (
        publish["data"].items() >= {"messaging.destination.name": "default", "messaging.system": "sa_jobqueue"}.items()
    )
    assert len(attempts) == 2
    for retries, attempt in enumerate(attempts):
        context = attempt["contexts"]["trace"]
        assert (context["trace_id"], context["parent_span_id"]) == (trace["trace_id"], publish["span_id"])
        assert (context["op"], context["status"], attempt["transaction"]) == ("queue.process", "internal_error", "sync")
        assert (
            context["data"].items() >= {"messaging.message.retry.count": retries, "messaging.message.id": "1"}.items()
        )
    (event,) = events(found, task="sync")
    assert event["contexts"]["trace"]["trace_id"] == trace["trace_id"]


def test_without_traces_there_are_events_alone(report: Report) -> None:
    """And nothing in the job's meta."""
    found = report("sync", trace=False)
    assert [one["transaction"] for one in events(found, "transaction")] == ["POST /orders"]
    assert events(found, "transaction")[0]["spans"] == []
    assert len(events(found, task="sync")) == 1


def test_a_handler_that_is_given_up_at_its_timeout_is_reported(report: Report) -> None:
    """By the thread that gives it up; with its tags."""
    (event,) = events(report("late"))
    assert event["exception"]["values"][-1]["type"] == "HandlerTimeout"
    assert event["tags"]["task"] == "late"


def test_outcomes_are_no_errors(report: Report) -> None:
    """Neither as events, nor in their transactions."""
    found = report("outcomes", every_failure=True)
    assert events(found) == []
    _, first, second = events(found, "transaction")
    assert {one["contexts"]["trace"].get("status") for one in (first, second)} <= {None, "ok"}


def test_what_a_handler_reports_itself_has_the_tags_of_its_job(report: Report) -> None:
    """It is not grouped with failures."""
    (event,) = events(report("says"))
    assert (event["logentry"]["message"], event["tags"]["task"]) == ("a line of its own", "says")
    assert "fingerprint" not in event


def test_a_job_whose_arguments_do_not_fit_is_reported_by_the_workers_log(report: Report) -> None:
    """Its handler was not called, so there is no attempt to report."""
    (event,) = events(report("fits"))
    assert "failed in attempt 1" in event["logentry"]["message"] % tuple(event["logentry"]["params"])
    assert event["logger"] == "sa_jobqueue.worker.running.joblog"
