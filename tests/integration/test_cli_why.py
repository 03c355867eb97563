"""`why`: the reasons as lines and as JSON, and what the exit code says."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from sa_jobqueue.models import WorkerRow
from sa_jobqueue.statements import pause
from tests.support.cli import as_json, invoke, notes, output, refused
from tests.support.factory import make_job


@pytest.fixture
def a_worker(engine: Engine) -> None:
    """One that serves the queue "default", by its row."""
    row = {"id": uuid.uuid4(), "host": "web-1", "pid": 7, "queues": ["default"], "concurrency": 4, "version": "1"}
    with engine.begin() as connection:
        connection.execute(insert(WorkerRow).values(**row))


def job_in(engine: Engine, status: str = "queued", **columns: Any) -> str:
    with engine.begin() as connection:
        return str(make_job(connection, status, **columns))


def test_the_deciding_reason_comes_first_with_what_can_be_done(engine: Engine, url: str) -> None:
    """The others follow, one a line. No password is shown, and nothing of a row breaks the line."""
    job = job_in(engine, task="shop.send", run_at=timedelta(hours=1, seconds=30))
    with engine.begin() as connection:
        connection.execute(pause("default", reason="postgresql://me:secret@down is\nslow"))
    said = invoke("why", job, url=url)
    head, queue, later, paused, resume, unserved, work = said.stdout.splitlines()
    assert (head, queue) == (f"job {job}  shop.send  queued", "queue default")
    assert later.startswith("waits until ")
    assert later.endswith("(in 1h), when it is due")
    assert (paused, resume) == (
        "also waits for pause default to end: postgresql://me:***@down is slow",
        "  → sa-jobqueue resume default",
    )
    assert unserved == "also has no worker: no live one serves queue default"
    assert work == "  → start a worker: sa-jobqueue work --queue default --app ..."
    assert (said.exit_code, notes(said)) == (1, "")


@pytest.mark.usefixtures("a_worker")
def test_json_has_all_of_a_reason(engine: Engine, url: str) -> None:
    """And whether it needs help; the exit code is the same."""
    job = job_in(engine)
    found = as_json("why", job, url=url)
    assert {name: found[name] for name in ("job_id", "status", "task", "queue", "needs_help")} == {
        "job_id": int(job), "status": "queued", "task": "a_task", "queue": "default", "needs_help": False,
    }  # fmt: skip
    (reason,) = found["reasons"]
    assert (reason["what"], reason["name"], reason["used"]) == ("turn", "default", 0)
    assert (reason["said"], reason["needs_help"], reason["advice"]) == ("is first in queue default", False, "")
    gone = invoke("why", "7000", "--json", url=url)
    assert gone.exit_code == 1
    assert json.loads(gone.stdout)["reasons"][0]["what"] == "missing"


@pytest.mark.usefixtures("a_worker")
@pytest.mark.parametrize(
    ("status", "code"), [("queued", 0), ("running", 0), ("completed", 0), ("failed", 1), ("cancelled", 1)]
)
def test_the_exit_code_says_whether_something_has_to_be_done(engine: Engine, url: str, status: str, code: int) -> None:
    """0 for a job that has run, or will by itself."""
    assert invoke("why", job_in(engine, status), url=url).exit_code == code


def test_no_such_job_is_an_answer(engine: Engine, url: str) -> None:
    """With exit code 1; what is no number is refused."""
    found = invoke("why", "7", url=url)
    assert found.exit_code == 1
    assert found.stdout.startswith("job 7\ndoes not exist: there is none in this database")
    assert "why --help" in refused("why", "seven", url=url)


def test_control_characters_of_a_row_are_shown_as_text(engine: Engine, url: str) -> None:
    """A queue may have any name."""
    job = job_in(engine, queue="ma\x1b[31mil")
    said = invoke("why", job, url=url).stdout
    assert "\x1b" not in said
    assert "queue ma\\x1b[31mil" in said


@pytest.mark.usefixtures("a_worker")
def test_show_has_the_same_reasons(engine: Engine, url: str) -> None:
    """Of a job that waits."""
    job_in(engine)
    job = job_in(engine)
    assert "is behind 1 job of queue default by priority\n" in output("show", job, url=url)
    assert as_json("show", job, url=url)["waits_for"] == as_json("why", job, url=url)["reasons"]
