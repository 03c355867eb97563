"""Failed jobs in groups, and what is done to a group."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, func, select, update

from sa_jobqueue.dashboard import Access
from sa_jobqueue.doctor import make_reading
from sa_jobqueue.models import AuditEntry, Job, WorkerRow
from tests.support.browsing import Seen, Viewer
from tests.support.busy_scene import make_worker
from tests.support.factory import make_job, statuses
from tests.support.plans import Plan


@pytest.fixture
def connection(engine: Engine) -> Any:
    with engine.connect() as made:
        yield made


def failed(connection: Connection, task: str, name: str, message: str, **columns: Any) -> int:
    error = {"type": name, "message": message, "attempt": 1}
    return make_job(connection, "failed", task=task, errors=[{"type": "Earlier", "message": "else"}, error], **columns)


def fields(page: Seen, action: str) -> list[dict[str, str]]:
    """What each form of this action would send, as a browser does."""
    found: list[dict[str, str]] = []
    current: dict[str, str] | None = None
    for name, attributes in page.elements:
        if name == "form":
            current = {} if attributes.get("action") == f"/act/{action}" else None
            if current is not None:
                found.append(current)
        elif name == "input" and current is not None and attributes.get("type") == "hidden":
            current[str(attributes["name"])] = attributes["value"] or ""
    return found


@pytest.fixture
def some(connection: Connection) -> dict[str, list[int]]:
    """Three kinds of failures."""
    ids = {
        "down": [failed(connection, "send", "smtp.Down", f"no answer\nin try {n}", finished_at=timedelta(hours=-n)) for n in range(5)],
        "late": [failed(connection, "send", "smtp.Down", "too late", finished_at=timedelta(days=-3)) for _ in range(2)],
        "other": [failed(connection, "pay", "smtp.Down", "no answer")],
        "none": [make_job(connection, "failed", task="raw", errors=[])],
    }  # fmt: skip
    make_job(connection, "completed", task="send", errors=[{"type": "smtp.Down", "message": "no answer"}])
    connection.commit()
    return ids


def test_jobs_that_failed_alike_are_one_line(engine: Engine, some: Any) -> None:
    """The most frequent first, with when it began and when it was last, and its last 24 hours."""
    page = Viewer(engine).see("/errors")
    assert "Failed jobs: 9. Kinds of errors: 4." in page.text
    lines = [one for one in page.text.split("Delete all") if "Retry all" in one]
    assert [("no answer" in one, "too late" in one) for one in lines][:2] == [(True, False), (False, True)]
    assert "5 in the last 24 hours" in page.html
    assert "0 in the last 24 hours" in page.html
    assert re.search(r"4h ago \d+s ago", lines[0])
    assert "no error recorded" in page.text


def test_numbers_ids_and_quoted_text_tell_no_groups_apart(engine: Engine, connection: Connection) -> None:
    """The line has a sign in their place, and the group's button reaches all its jobs. A line that is a quoted name is as it is."""
    for varying in (
        "Order 12 of 'Ada Byron'",
        'Order 7f1c-9 of "Bob"',
        "Order 550e8400-e29b-41d4-a716-446655440000 of 'x'",
    ):
        failed(connection, "send", "E", f"{varying} can't be sent at 10.0.0.7:25")
    for line in ("Order of Ada can't be sent", "'to'", "'copy'"):
        failed(connection, "send", "E", line)
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.see("/errors")
    assert "Kinds of errors: 4." in page.text
    assert "3 E Order … of … can't be sent at … send" in page.text
    viewer.do("retry_group", **fields(page, "retry_group")[0])
    assert list(statuses(connection).values()).count("queued") == 3


def test_the_jobs_of_a_group_are_shown(engine: Engine, some: Any) -> None:
    viewer = Viewer(engine)
    (link,) = [one for one in viewer.see("/errors").links if "task=pay" in one]
    page = viewer.see(link)
    assert [one for one in page.links if one.startswith("/jobs/")] == [f"/jobs/{some['other'][0]}"]
    (link,) = [one for one in viewer.see("/errors").links if "task=raw" in one]
    assert f"/jobs/{some['none'][0]}" in viewer.see(link).links


def test_a_group_shows_the_error_and_arguments_of_its_newest_job(engine: Engine, connection: Connection) -> None:
    """With its traceback folded, and arguments as the page of the job shows them: masked by the application."""
    failed(connection, "send", "smtp.Down", "no answer 1", args={"to": "old"}, finished_at=timedelta(hours=-4))
    error = {"type": "smtp.Down", "message": "no answer 2", "traceback": "line 7, in <send>"}
    newest = make_job(connection, "failed", task="send", errors=[error], args={"to": "ada@example.com"})
    connection.commit()
    viewer = Viewer(engine, format_args=lambda task, part, value: {"to": "***"})
    (link,) = [one for one in viewer.see("/errors").links if "group=" in one]
    page = viewer.see(link)
    assert "<title>Down in send · Jobs</title>" in page.html
    assert f"The newest, job {newest} smtp.Down no answer 2 Traceback line 7, in <send> Arguments" in page.text
    assert "***" in page.text
    assert "example.com" not in page.html
    assert re.search(r"Message no answer … Jobs 2 First 4h ago Last \d+s ago", page.text)


def test_a_job_is_tried_before_all_like_it(engine: Engine, connection: Connection, some: dict[str, list[int]]) -> None:
    """The page then says what became of the newest, and still has the button for the others."""
    viewer = Viewer(engine, Access.OPERATE)
    (link,) = [
        one for one in viewer.see("/jobs", status="failed").links if "error=smtp.Down" in one and "task=pay" in one
    ]
    other = failed(connection, "pay", "smtp.Down", "no answer")
    connection.commit()
    (sent,) = fields(viewer.see(link), "retry")
    assert sent["id"] == str(other)
    page = viewer.do("retry", **sent)
    assert f"becomes of it: job {other} queued" in page.text
    viewer.do("retry_group", **fields(page, "retry_group")[0])
    assert [statuses(connection)[id] for id in (other, *some["other"])] == ["queued"] * 2
    stranger = Viewer(engine, Access(can=["retry"], queues=["mail"])).see(link, tried=other)
    assert f"job {other}" not in stranger.text


def test_the_page_of_a_failed_job_links_to_its_group(engine: Engine, connection: Connection, some: Any) -> None:
    """With the number of jobs in it that the viewer may see; that of a job which has not failed does not."""
    failed(connection, "send", "smtp.Down", "no answer", queue="other")
    connection.commit()
    for access, number in ((Access.READ, 6), (Access(can=["read"], where=Job.queue == "default"), 5)):
        viewer = Viewer(engine, access)
        page = viewer.see(f"/jobs/{some['down'][0]}")
        assert f"Jobs that failed like this: {number} " in page.text
        (link,) = [one for one in page.links if one.startswith("/errors?")]
        assert f"/jobs/{some['down'][4]}" in viewer.see(link).links
    connection.execute(update(Job).values(status="completed"))
    connection.commit()
    assert "failed like this" not in viewer.see(f"/jobs/{some['down'][0]}").text


def test_groups_that_began_after_the_last_deployment_are_new(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is when the first live worker of the newest version started. Where jobs that failed since are not counted, none is called new."""
    first = failed(connection, "old", "E", "m", finished_at=timedelta(hours=-9))
    for task, hours in (("old", 1), ("new", 2), ("between", 4), ("before", 6)):
        failed(connection, task, "E", "m", finished_at=timedelta(hours=-hours))
    connection.commit()
    viewer = Viewer(engine)
    assert "It is not known which are new: no worker is there." in viewer.see("/errors", show="new").text
    for version, began, unseen in (("2", 3, 1), ("2", 5, 1), ("1", 7, 1), ("2", 8, 99)):
        id = make_worker(connection, version=version, unseen=unseen)
        started = func.now() - timedelta(hours=began)
        connection.execute(update(WorkerRow).where(WorkerRow.id == id).values(started_at=started))
    connection.commit()
    page = Viewer(engine).see("/errors")
    assert re.findall(r"new E m (\w+)", page.text) == ["between", "new"]
    page = Viewer(engine).see("/errors", show="new")
    assert "Kinds of errors: 2." in page.text
    assert "5h ago" in page.text
    assert "old" not in re.findall(r"E m (\w+)", page.text)
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.errors.NEWEST_FAILED", 5)
    assert "5h ago" in Viewer(engine).see("/errors", show="new").text
    connection.execute(update(Job).where(Job.id == first).values(finished_at=func.now()))
    connection.commit()
    assert "more jobs failed since the last deployment" in Viewer(engine).see("/errors", show="new").text


def test_a_resolved_group_is_back_once_a_job_fails_like_it(engine: Engine, connection: Connection, some: Any) -> None:
    """Marked as "again"; until then it is on the list of all groups, marked as "resolved", from where it can be brought back."""
    viewer = Viewer(engine, Access.OPERATE.named("ada"))
    page = viewer.see("/errors")
    sent = next(one for one in fields(page, "resolve_errors") if one["task"] == "pay")
    page = viewer.do("resolve_errors", **sent)
    assert "Resolved, until a job fails like this again." in page.text
    assert "Kinds of errors: 4. Resolved or muted, and not shown: 1." in page.text
    assert not [one for one in page.links if "task=pay" in one]
    shown = viewer.see("/errors", show="all")
    assert "resolved Down no answer pay" in shown.text
    assert "Marked by ada at" in shown.html
    failed(connection, "pay", "smtp.Down", "no answer", finished_at=timedelta(0))
    connection.commit()
    assert "again Down no answer pay" in Viewer(engine).see("/errors").text
    viewer.do("resolve_errors", **sent)
    (sent,) = fields(Viewer(engine).see("/errors", show="all"), "show_errors")
    assert "Down no answer pay" in viewer.do("show_errors", **sent).text
    entries = connection.execute(select(AuditEntry.action, AuditEntry.who, AuditEntry.target["task"][0].astext)).all()
    assert entries == [(f"{name}_errors", "ada", "pay") for name in ("resolve", "resolve", "show")]


def test_a_muted_group_is_back_after_that_time(engine: Engine, connection: Connection, some: Any) -> None:
    viewer = Viewer(engine)
    (link,) = [one for one in viewer.see("/errors").links if "task=pay" in one]
    (sent,) = fields(viewer.see(link), "mute_errors")
    assert viewer.send("mute_errors", {**sent, "for": "9y"}).status_code == 400
    assert re.search("muted in (1d|2.h)", viewer.do("mute_errors", **sent, **{"for": "1d"}).text)
    failed(connection, "pay", "smtp.Down", "no answer")
    connection.commit()
    assert not [one for one in Viewer(engine).see("/errors").links if "task=pay" in one]
    connection.execute(update(AuditEntry).values(at=func.now() - timedelta(days=1)))
    connection.commit()
    assert [one for one in Viewer(engine).see("/errors").links if "task=pay" in one]


@pytest.mark.parametrize("rights", [{"queues": ["default"]}, {"where": Job.queue == "default"}])
def test_who_sees_some_jobs_marks_no_group_and_has_none_hidden(
    engine: Engine, connection: Connection, some: Any, rights: dict[str, Any]
) -> None:
    """A mark is about the jobs of all: it must neither be made by a viewer of some, nor hide that viewer's jobs."""
    everyone = Viewer(engine)
    sent = fields(everyone.see("/errors"), "resolve_errors")[0]
    access = Access(can=Access.ADMIN.can, **rights)
    viewer = Viewer(engine, access)
    assert fields(viewer.see("/errors"), "resolve_errors") == []
    for action in ("resolve_errors", "mute_errors", "show_errors"):
        assert viewer.send(action, {**sent, "for": "1d"}).status_code == 404
    assert connection.execute(select(AuditEntry.id)).all() == []
    everyone.do("resolve_errors", **sent)
    assert "Kinds of errors: 4. 5 " in re.sub(
        " Jobs Error and task.*? Actions ", " ", Viewer(engine, access).see("/errors").text
    )


def test_marks_are_found_by_their_index(engine: Engine, connection: Connection) -> None:
    """However long the audit is; and whatever their entries hold."""
    connection.exec_driver_sql(
        "INSERT INTO sa_jobqueue.audit (count, action, who, target) SELECT 1, 'retry', 'x', '{}' FROM generate_series(1, 5000)"
    )
    for target in ("[]", "7", '{"task": {"a": 1}, "group": ["x", "y"]}', "null"):
        connection.exec_driver_sql(
            f"INSERT INTO sa_jobqueue.audit (count, action, who, target) VALUES (1, 'mute_errors', '<img>', '{target}')"
        )
    failed(connection, "send", "E", "m")
    connection.commit()
    seen: list[tuple[str, Any]] = []
    event.listen(
        engine, "before_cursor_execute", lambda _, __, statement, values, *___: seen.append((statement, values))
    )
    assert "Kinds of errors: 1." in Viewer(engine).see("/errors").text
    ((statement, values),) = [one for one in seen if "audit" in one[0]]
    found = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", values).scalar_one()
    assert Plan(found[0]["Plan"]).indexes == {"audit_errors_idx"}


@pytest.mark.parametrize("action", ["retry_group", "delete_group"])
@pytest.mark.parametrize("place", range(4))
def test_a_button_reaches_what_its_line_has_counted(
    engine: Engine, connection: Connection, some: dict[str, list[int]], action: str, place: int
) -> None:
    """Once it is confirmed with that number; and nothing else."""
    viewer = Viewer(engine, Access.ADMIN.named("ada"))
    sent = fields(viewer.see("/errors"), action)[place]
    answer = viewer.send(action, sent)
    ids = next(ids for ids in some.values() if sent["task"] in ("send", "pay", "raw") and ids == _of(connection, sent))
    assert f"{len(ids)} job{'' if len(ids) == 1 else 's'} that failed like this" in Seen(answer.text).text
    assert ("Type “delete”" in answer.text) == (action == "delete_group")
    connection.rollback()
    assert list(statuses(connection).values()).count("failed") == 9
    connection.rollback()
    viewer.do(action, **sent)
    after = statuses(connection)
    assert [after.get(id) for id in ids] == ["queued" if action == "retry_group" else None] * len(ids)
    assert list(after.values()).count("failed") == 9 - len(ids)
    assert connection.execute(select(AuditEntry.who, AuditEntry.count)).all() == [("ada", len(ids))]


def _of(connection: Connection, sent: dict[str, str]) -> list[int]:
    """The jobs of a group, found in another way."""
    rows = connection.execute(select(Job.id, Job.errors).where(Job.status == "failed", Job.task == sent["task"])).all()
    lines = {row.id: (row.errors or [{}])[-1].get("message", "").split("\n")[0] for row in rows}
    from hashlib import sha256

    return [id for id, line in lines.items() if sha256(line.encode()).hexdigest()[:16] == sent["group"]]


def test_a_group_is_done_down_to_the_floor_that_was_shown(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs older than those that were counted come up when the newest are gone: they are not meant."""
    monkeypatch.setattr("sa_jobqueue.dashboard.app._PATIENCE", 1_000.0)
    connection.exec_driver_sql(
        "INSERT INTO sa_jobqueue.job (task, status, finished_at, errors) "
        'SELECT \'send\', \'failed\', now(), \'[{"type": "E", "message": "m"}]\' FROM generate_series(1, 10500)'
    )
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.see("/errors")
    assert "Only the newest 10,000 failed jobs are counted." in page.text
    viewer.do("retry_group", **fields(page, "retry_group")[0])
    assert list(statuses(connection).values()).count("failed") == 500


def test_whatever_a_message_holds_its_group_is_found(engine: Engine, connection: Connection) -> None:
    """Blanks at its ends, control characters, no text at all, and what is no entry."""
    for message in ("  led by blanks\u00a0", "\ttab", "\n\nsecond", "x" * 5_000, "", "'; --", "é\u2028ü"):
        failed(connection, "send", "E", message)
    make_job(connection, "failed", task="send", errors={"type": "no list"})
    make_job(connection, "failed", task="send", errors=["no object", 7])
    make_job(connection, "failed", task="send", errors=[{"type": ["E"], "message": {"a": 1}}])
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.see("/errors")
    for sent in fields(page, "retry_group"):
        assert "Retried" in viewer.do("retry_group", **sent).text
    assert set(statuses(connection).values()) == {"queued"}


@pytest.mark.parametrize(
    "access", [Access(can=Access.ADMIN.can, queues=["mail"]), Access(can=Access.ADMIN.can, where=Job.queue == "mail")]
)
def test_one_sees_and_reaches_ones_own(engine: Engine, connection: Connection, access: Access) -> None:
    theirs = failed(connection, "send", "E", "m", queue="other")
    mine = failed(connection, "send", "E", "m", queue="mail")
    connection.commit()
    viewer = Viewer(engine, access)
    page = viewer.see("/errors")
    assert "Failed jobs: 1. Kinds of errors: 1." in page.text
    (sent,) = fields(page, "retry_group")
    viewer.do("retry_group", **{**sent, "floor": "1"})
    assert statuses(connection) == {theirs: "failed", mine: "queued"}


def test_the_newest_failures_alone_are_read(engine: Engine, connection: Connection) -> None:
    """By their index, each once, whatever else there is; and no traceback is sorted, for which there is no room in memory."""
    connection.exec_driver_sql(
        "INSERT INTO sa_jobqueue.job (task, status, finished_at) SELECT 'a', 'completed', now() FROM generate_series(1, 20000)"
    )
    connection.exec_driver_sql(
        "INSERT INTO sa_jobqueue.job (task, status, finished_at, errors) SELECT 'a', 'failed', now(), jsonb_build_array("
        "jsonb_build_object('type', 'E', 'message', 'm', 'traceback', (SELECT string_agg(md5((n * k)::text), '') "
        "FROM generate_series(1, 90) k))) FROM generate_series(1, 3000) n"
    )
    connection.commit()
    seen: list[tuple[str, Any]] = []
    event.listen(
        engine, "before_cursor_execute", lambda _, __, statement, values, *___: seen.append((statement, values))
    )
    Viewer(engine).see("/errors")
    ((statement, values),) = [one for one in seen if "GROUP BY" in one[0]]
    make_reading(connection, statement=timedelta(minutes=1), lock=timedelta(minutes=1), idle=timedelta(minutes=1))
    found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", values).scalar_one()
    plan = Plan(found[0]["Plan"])
    assert plan.indexes == {"job_failed_idx"}
    assert "Seq Scan" not in plan.kinds
    assert plan.largest_discard == 0
    assert plan.root["Temp Written Blocks"] == 0


def test_a_form_that_names_no_group_is_refused(engine: Engine, connection: Connection) -> None:
    failed(connection, "send", "E", "m")
    connection.commit()
    for sent in ({}, {"task": "send"}, {"group": "0"}, {"task": "send", "group": "0", "floor": "x"}):
        assert Viewer(engine).send("retry_group", {**sent, "confirmed": "yes"}).status_code == 400
    assert set(statuses(connection).values()) == {"failed"}


def test_passwords_in_messages_are_masked(engine: Engine, connection: Connection) -> None:
    failed(connection, "send", "E", "cannot reach postgresql://me:geheim@db/shop")
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.see("/errors")
    assert "geheim" not in page.html
    (link,) = [one for one in page.links if "group=" in one]
    for path in (link, "/", "/jobs"):
        shown = viewer.see(path)
        assert "cannot reach postgresql://me:***@db/shop" in shown.text
        assert "geheim" not in shown.html
