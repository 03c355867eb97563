"""What rows say is shown as text: whoever may enqueue writes them, and whoever is on call reads them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Connection, Engine, func, insert, update

from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.dashboard.pages.jobs import COLUMNS
from sa_jobqueue.models import AuditEntry, Job, KeyRow, Schedule, WorkflowCallback, WorkflowRow
from tests.support.browsing import Seen, Viewer
from tests.support.factory import make_job
from tests.support.failures import noted

BAD = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{7*7}}${7*7}</textarea></title>&#x3c;"


@pytest.fixture
def hostile(engine: Engine) -> int:
    """A row that is hostile wherever it has room for text."""
    with engine.begin() as connection:
        return fill(connection)


def fill(connection: Connection) -> int:
    error = {"type": f"mod.{BAD}", "message": BAD, "traceback": BAD, "at": BAD, "attempt": 1}
    values: dict[str, Any] = {
        "task": BAD, "queue": BAD, "args": {BAD: BAD, "nested": [{BAD: BAD}]}, "meta": {"tags": [BAD], BAD: BAD}, "errors": [error],
        "subject_type": "Order", "subject_id": BAD, "concurrency_key": BAD, "worker": BAD,
    }  # fmt: skip
    make_job(connection, "completed", **values, result={BAD: BAD})
    id = make_job(connection, "failed", **values)
    connection.execute(insert(WorkflowRow).values(id=id, name=BAD, reason=BAD, meta={BAD: BAD}))
    connection.execute(
        insert(WorkflowCallback).values(
            workflow_id=id, number=1, priority=4, max_attempts=1, event="end", task=BAD, queue=BAD, args={}, meta={}
        )
    )
    connection.execute(update(Job).where(Job.task == BAD).values(workflow_id=id, schedule_id=id))
    schedule = {
        "name": BAD,
        "expression": "* * * * *",
        "task": BAD,
        "queue": BAD,
        "paused_at": func.now(),
        "pause_reason": BAD,
        "error": BAD,
    }
    connection.execute(insert(Schedule.__table__).values(id=id, **schedule))
    connection.execute(
        insert(KeyRow).values(owner="queue", name=BAD, key=BAD, running=1, paused_at=func.now(), pause_reason=BAD)
    )
    make_job(connection, "queued", **values)
    connection.execute(insert(AuditEntry).values(who=BAD, action=BAD, count=1, target={BAD: [BAD]}))
    return id


def test_what_a_row_says_is_text(engine: Engine, hostile: int) -> None:
    """No element and no attribute comes of it, on any page and in what refreshes it."""
    failures: list[str] = []
    paths = [re.sub(r"\{[^}]*\}", quote(BAD) if page.name == "key" else str(hostile), page.path) for page in PAGES]
    for path in [*paths, f"/jobs?cols={','.join(COLUMNS)}", "/audit?number=1"]:
        for fragment in (False, True):
            answer = Viewer(engine).get(path, fragment=fragment)
            seen = Seen(answer.text)
            with noted(failures, answer.url):
                assert not [found for _, found in seen.elements for name in found if name.startswith("on")]
                assert seen.all("img") == []
                assert all((found.get("src") or "").startswith("/static/") for found in seen.all("script"))
                assert "49" not in re.findall(r"\{\{.*?\}\}|\$\{.*?\}", seen.text)
                assert "<script>alert" not in answer.text
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("time", ["infinity", "-infinity"])
def test_times_that_no_clock_shows_hide_nothing(engine: Engine, time: str) -> None:
    with engine.begin() as connection:
        names = ("created_at", "run_at", "claimed_at", "finished_at", "purge_at", "expires_at")
        id = make_job(connection, "failed", **dict.fromkeys(names, time))
        make_job(connection, "completed", task="a_task", **dict.fromkeys(names, time))
    viewer, paths = Viewer(engine), ("/jobs", "/errors", f"/jobs/{id}", f"/jobs/{id}/edit", "/tasks/a_task")
    assert [path for path in paths if "a_task" not in viewer.see(path).text] == []


@pytest.mark.parametrize("name", ["task", "queue", "group", "q", "key", "\0"])
def test_a_nul_is_refused(engine: Engine, name: str) -> None:
    """PostgreSQL has no such text."""
    viewer, query = Viewer(engine), {name: "a\0b", "task": "\0"}
    answers = {path: viewer.get(path, **query).status_code for path in ("/jobs", "/errors", "/find")}
    assert answers == dict.fromkeys(answers, 400)


@pytest.mark.parametrize(
    "name",
    [
        *("task", "queue", "tag", "key", "error", "subject", "status", "args", "before", "newer_than", "did", "n"),
        *("worker", "not_task", "not_error", "attempts", "took", "created_after", "cols", "entry"),
    ],
)
def test_what_an_address_says_is_text(engine: Engine, name: str) -> None:
    answer = Viewer(engine).get("/jobs", **{name: BAD, "next": BAD})
    assert answer.status_code in (200, 400)
    assert "<script>alert" not in answer.text
    assert Seen(answer.text).all("img") == []


def test_what_a_form_says_is_text(engine: Engine) -> None:
    fields = dict.fromkeys(("task", "queue", "next", "all", "after", "count"), BAD)
    answer = Viewer(engine).send("retry", fields)
    assert answer.status_code in (200, 400)
    assert "<script>alert" not in answer.text
