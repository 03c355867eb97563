"""What an action asks before it is done, and what the audit keeps of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, select, text, update

from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import AuditEntry, Job
from tests.support.browsing import Viewer
from tests.support.busy_scene import make_worker
from tests.support.factory import make_job, statuses


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


def test_a_completed_job_is_run_again_only_after_a_question(engine: Engine, connection: Connection) -> None:
    """It does once more what it has done, such as charge a card. A failed one has not."""
    done, failed = make_job(connection, "completed"), make_job(connection, "failed")
    connection.commit()
    viewer = Viewer(engine)
    assert "Run again…" in viewer.see(f"/jobs/{done}").text
    for ids in ([done], [done, failed]):
        answer = viewer.send("retry", {"id": ids})
        assert 'name="confirmed"' in answer.text
    assert viewer.send("retry", {"id": failed}).status_code == 303
    assert statuses(connection) == {done: "completed", failed: "queued"}
    connection.rollback()
    viewer.do("retry", id=done)
    assert statuses(connection)[done] == "queued"


def test_a_running_job_is_said_to_be_asked_and_not_to_be_cancelled(engine: Engine, connection: Connection) -> None:
    """The message says what became of each, and what is asked is not asked again."""
    waits, runs = make_job(connection), make_job(connection, "running")
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.do("cancel", id=[waits, runs], next=f"/jobs/{runs}")
    assert "Cancelled 1 job." in page.text
    assert "Asked to stop, because they are running: 1 job." in page.text
    assert not [form for form in page.all("form") if form["action"] == "/act/cancel"]
    again = viewer.do("cancel", id=runs)
    assert "Cancelled" not in again.text


def test_a_pause_of_what_nobody_serves_is_doubted(engine: Engine, connection: Connection) -> None:
    """The name may be misspelt. The one that is meant goes on."""
    make_worker(connection)
    connection.commit()
    viewer = Viewer(engine)
    assert "Paused queue mial, which no live worker serves." in viewer.do("pause", name="mial").text
    assert "Paused queue mail: " in viewer.do("pause", name="mail").text


def test_the_audit_has_no_arguments(engine: Engine, connection: Connection) -> None:
    """Who may read it need not be one who may see arguments, which an application may mask."""
    make_job(connection, "failed", args={"email": "ada@example.com"})
    connection.commit()
    assert "Retried 1 job." in Viewer(engine).do("retry", args='{"email": "ada@example.com"}').text
    assert connection.scalar(select(AuditEntry.target)) == {
        "args": ["…"],
        "ids": [1],
        "failed": [1],
        "retained": [604_800],
        "undo": "fully",
    }


def test_a_retry_is_undone_for_the_jobs_that_have_not_started(engine: Engine, connection: Connection) -> None:
    """The message has the button. A job that has started since, or waits for its next attempt, goes on."""
    ids = [make_job(connection, "failed", queue="mail") for _ in range(4)]
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.do("retry", queue="mail", status="failed")
    assert "Retried 4 jobs. Action 1 Undo what has not started" in page.text
    for id, values in ((ids[0], {"status": "running"}), (ids[1], {"claimed_at": text("now()")})):
        connection.execute(update(Job).where(Job.id == id).values(**values))
    connection.commit()
    fields = {str(field["name"]): str(field["value"]) for field in page.all("input") if field.get("name") == "number"}
    assert "Failed again, as before the retry: 2 jobs." in viewer.do("undo", **fields).text
    assert list(statuses(connection).values()) == ["running", "queued", "failed", "failed"]
    assert "Undo" not in Viewer(engine, Access(can={"retry"})).do("retry", id=ids[2]).text


def test_what_cannot_be_undone_is_typed(engine: Engine, connection: Connection) -> None:
    """All jobs of a filter are deleted or discarded only after the word was typed; jobs that were ticked after a question."""
    ids = [make_job(connection, "failed", queue="mail") for _ in range(2)]
    connection.commit()
    viewer = Viewer(engine)
    fields = {"queue": "mail", "confirmed": "yes"}
    wrong = viewer.send("delete", {**fields, "typed": "mail"}).text
    assert "Type “delete”" in wrong
    assert "“mail” was typed: nothing was done." in wrong
    assert "Type" not in viewer.send("delete", {"id": ids[0]}).text
    assert viewer.send("delete", {**fields, "typed": "delete"}).status_code == 303
    assert statuses(connection) == {}


def test_actions_that_change_nothing_on_a_tab_are_not_offered(engine: Engine, connection: Connection) -> None:
    make_job(connection, "failed")
    connection.commit()
    page = Viewer(engine).see("/jobs", status="failed")
    assert {button.get("formaction") for button in page.all("button")} >= {"/act/retry", "/act/delete"}
    assert not {button.get("formaction") for button in page.all("button")} & {"/act/cancel", "/act/discard"}
