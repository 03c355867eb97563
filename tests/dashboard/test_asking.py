"""What an action asks before it is done, and what the audit keeps of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, select

from sa_jobqueue.models import AuditEntry
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
    assert connection.scalar(select(AuditEntry.target)) == {"args": ["…"]}
