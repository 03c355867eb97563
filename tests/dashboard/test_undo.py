"""Taking back what was done: by the button next to the message, and later by the number of the action."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert, select, text, update

from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import AuditEntry, Job, UniqueKey, WorkflowRow
from tests.support.browsing import Seen, Viewer
from tests.support.factory import make_job, make_jobs, row, statuses
from tests.support.workflows import Flow

#: What a cancel leaves as it is, so that an undo brings it back.
KEPT = ("run_at", "attempt", "rescues", "expires_at", "deadline_at", "concurrency_key", "priority", "errors")


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as made:
        yield made


def undo(viewer: Viewer, page: Seen) -> Seen:
    """Press the page's button that undoes a cancel."""
    assert [form["action"] for form in page.all("form", action="/act/undo_cancel")] == ["/act/undo_cancel"]
    (number,) = [field["value"] for field in page.all("input", name="number", type="hidden")]
    return viewer.do("undo_cancel", number=number, next="/jobs")


def test_a_cancel_is_undone_as_if_it_had_not_been(engine: Engine, connection: Connection) -> None:
    """Due time, attempts and keys are as before. A running job was asked to stop, and a job that was cancelled again is not of this cancel."""
    later = timedelta(hours=3)
    rule = {"key": "once"}
    ids = [
        make_job(connection, run_at=later, attempt=2, rescues=1, expires_at=later, deadline_at=later, priority=7),
        make_job(connection, uniqueness=rule, concurrency_key="acme", attempt=1),
        make_job(connection),
    ]
    running = make_job(connection, "running")
    before = [[getattr(row(connection, id), name) for name in KEPT] for id in ids]
    connection.commit()
    viewer = Viewer(engine, Access.OPERATE.named("ada"))
    page = viewer.do("cancel", id=[*ids, running], next="/jobs")
    assert "Cancelled 3 jobs. Action 1" in page.text
    assert "Asked to stop, because they are running: 1 job." in page.text
    viewer.do("retry", id=ids[2])
    viewer.do("cancel", id=ids[2])
    assert "Back in the queue, as before the cancel: 2 jobs. Action 4" in undo(viewer, page).text
    found = statuses(connection)
    assert [found[id] for id in (*ids, running)] == ["queued", "queued", "cancelled", "running"]
    assert [[getattr(row(connection, id), name) for name in KEPT] for id in ids[:2]] == before[:2]
    assert connection.scalars(select(UniqueKey.job_id)).all() == [ids[1]]
    assert "Nothing was changed." in undo(viewer, page).text


def test_a_retry_of_failed_jobs_is_undone_as_if_it_had_not_been(engine: Engine, connection: Connection) -> None:
    """Its error, attempts, end and retention are as before, and later jobs in its workflow are cancelled again."""
    error = {"type": "E", "message": "m", "attempt": 3, "at": "2026-01-01T10:00:03+00:00"}
    end = {"finished_at": "2026-01-01 10:00:03Z", "attempt": 3, "errors": [error]}
    ids = [
        make_job(connection, "failed", **end, purge_at="2300-01-01 10:00Z", uniqueness={"key": "once"}),
        make_job(connection, "failed", **end, purge_at=None),
        make_job(connection, "failed", errors="written by hand", attempt=2),
    ]
    flow = Flow(connection, "a", "b: a")
    flow.fail("a")
    ids.append(flow.job("a"))
    names = ("status", "finished_at", "purge_at", "attempt", "errors", "run_at")
    before = [[getattr(row(connection, id), name) for name in names] for id in (*ids[:2], ids[3])]
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.do("retry", id=ids)
    assert "Undo what has not started" in page.text
    number = page.all("input", name="number")[0]["value"]
    assert "Undo what has not started" in viewer.see("/audit", number=number).text
    assert "Failed again, as before the retry: 4 jobs." in viewer.do("undo", number=number).text
    assert [[getattr(row(connection, id), name) for name in names] for id in (*ids[:2], ids[3])] == before
    assert (row(connection, ids[2]).status, row(connection, ids[2]).attempt) == ("failed", 0)
    assert connection.scalars(select(UniqueKey.job_id)).all() == []
    flow.settle()
    assert flow.statuses() == {"a": "failed", "b": "cancelled"}
    connection.commit()
    assert "Undo what has not started" in viewer.do("retry", id=flow.job("a")).text


def test_the_undo_of_a_retry_says_that_it_cancels_jobs_that_had_not_failed(
    engine: Engine, connection: Connection
) -> None:
    failed, completed = make_job(connection, "failed"), make_job(connection, "completed")
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.do("retry", id=[failed, completed])
    (number,) = (field["value"] for field in page.all("input", name="number", type="hidden"))
    for seen in (page, viewer.see("/audit", number=number)):
        assert ("Cancel what has not started" in seen.text, "Undo" in seen.text) == (True, False)
    done = viewer.do("undo_by_cancel", number=number).text
    assert "Cancelled 1 job, because they had not started. Action 2 Failed again, as before the retry: 1 job." in done
    assert statuses(connection) == {failed: "failed", completed: "cancelled"}


def test_what_cannot_come_back_is_counted(engine: Engine, connection: Connection) -> None:
    """A job whose unique key another job has, and a job of a workflow that was cancelled meanwhile."""
    lost, free = make_job(connection, uniqueness={"key": "once"}), make_job(connection)
    flow, other = Flow(connection, "a", "b: a"), Flow(connection, "a", "b: a")
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.do("cancel", id=[lost, free, flow.job("a"), other.job("a")], next="/jobs")
    make_job(connection, uniqueness={"key": "once"})
    other.settle()
    connection.execute(update(WorkflowRow).where(WorkflowRow.id == flow.id).values(cancelled_at=text("now()")))
    connection.commit()
    assert statuses(connection)[other.job("b")] == "cancelled"
    connection.rollback()
    done = undo(viewer, page)
    assert "Back in their workflows, where they wait for the jobs before them: 2 jobs." in done.text
    assert "Not changed, because another job has their unique key, their workflow was cancelled, or" in done.text
    assert done.text.count("has locked them: 2 jobs.") == 1
    found = statuses(connection)
    assert [found[id] for id in (lost, free, flow.job("a"), other.job("a"), other.job("b"))] == [
        "cancelled", "queued", "cancelled", "blocked", "blocked",
    ]  # fmt: skip


def test_a_job_whose_cancel_cancelled_others_comes_back_with_its_due_time(
    engine: Engine, connection: Connection
) -> None:
    flow = Flow(connection, "a", "b: a")
    later = {"run_at": text("now() + interval '3 hours'"), "attempt": 2, "rescues": 1}
    connection.execute(update(Job).where(Job.id == flow.job("a")).values(later))
    before = [getattr(row(connection, flow.job("a")), name) for name in KEPT]
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.do("cancel", id=flow.job("a"), next="/jobs")
    flow.settle()
    connection.commit()
    assert set(flow.statuses().values()) == {"cancelled"}
    connection.rollback()
    undo(viewer, page)
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "blocked"}
    assert [getattr(row(connection, flow.job("a")), name) for name in KEPT] == before


def test_a_long_cancel_is_undone_by_its_number(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entries in the audit name the first; an entry of someone else between them is not touched. Once it is undone there is no button."""
    monkeypatch.setattr("sa_jobqueue.dashboard.actions.limits._PAGE", 2)
    ids = make_jobs(connection, 5, queue="mail")
    connection.commit()
    viewer = Viewer(engine)
    assert "Cancelled 5 jobs of queue mail. Action 1" in viewer.do("cancel_queue", queue="mail").text
    entries = connection.scalars(select(AuditEntry.target["part_of"]).order_by(AuditEntry.id)).all()
    assert entries == [None, ["1"], ["1"]]
    other = make_job(connection)
    connection.commit()
    viewer.do("cancel", id=other)
    page = viewer.see("/audit", number="1")
    assert [entry["id"] for entry in page.all("tr") if entry.get("id")] == ["audit-3", "audit-2", "audit-1"]
    assert "5 jobs." in undo(viewer, page).text
    found = statuses(connection)
    assert ({found[id] for id in ids}, found[other]) == ({"queued"}, "cancelled")
    assert viewer.see("/audit", number="1").all("form", action="/act/undo_cancel") == []
    reader = Viewer(engine, Access.READ).see("/audit", number="4")
    assert (reader.all("form", method="post"), "cancel 1 " in reader.text) == ([], True)


def test_a_form_does_not_join_the_action_of_someone_else(engine: Engine, connection: Connection) -> None:
    ids = make_jobs(connection, 2)
    connection.commit()
    Viewer(engine, Access.ADMIN.named("ada")).do("cancel", id=ids[0])
    Viewer(engine, Access.OPERATE.named("eve")).send("cancel", {"id": ids[1], "after": "1", "entry": "1"})
    assert connection.scalars(select(AuditEntry.target["part_of"])).all() == [None, None]


@pytest.mark.parametrize(
    "target",
    [[], 7, {"ids": "x"}, {"ids": [[1]], "ended": 1}, {"id": ["1"], "ended": ["soon"]}, {"ids": [9**30], "ended": ["2030-01-01"]}],
)  # fmt: skip
def test_an_entry_that_was_written_by_hand_undoes_nothing(engine: Engine, connection: Connection, target: Any) -> None:
    id = make_job(connection, "cancelled")
    connection.execute(insert(AuditEntry).values(id=1, who="x", action="cancel", count=1, target=target))
    connection.commit()
    viewer = Viewer(engine)
    assert viewer.see("/audit", number="1").all("form", method="post") == []
    assert "Nothing was changed." in viewer.do("undo_cancel", number="1").text
    assert statuses(connection)[id] == "cancelled"


def test_of_others_nothing_is_brought_back(engine: Engine, connection: Connection) -> None:
    mine, theirs = make_job(connection, queue="mine"), make_job(connection, queue="theirs")
    connection.commit()
    Viewer(engine).do("cancel", id=[mine, theirs])
    for access in (Access(can={"retry"}, queues={"mine"}), Access(can={"retry"}, where=Job.queue == "mine")):
        Viewer(engine, access).do("undo_cancel", number="1", next="/jobs")
    assert statuses(connection) == {mine: "queued", theirs: "cancelled"}
