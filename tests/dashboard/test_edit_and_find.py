"""The form that changes a job, and the field that finds one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert, select, text, update

from sa_jobqueue.dashboard import Access
from sa_jobqueue.dashboard.pages import find as finding
from sa_jobqueue.dashboard.shared import Kept
from sa_jobqueue.models import AuditEntry, Job, LimitRow, Schedule, Stat, WorkflowRow
from sa_jobqueue.rules.lifecycle import COUNTED
from tests.support.browsing import Seen, Viewer
from tests.support.busy_scene import fill
from tests.support.factory import make_job, row


@pytest.fixture
def connection(engine: Engine) -> Any:
    with engine.connect() as made:
        yield made


def made(connection: Connection, status: str = "queued", **columns: Any) -> int:
    id = make_job(connection, status, **columns)
    connection.commit()
    return id


def found(connection: Connection, id: int) -> Any:
    connection.rollback()
    return row(connection, id)


# ---- editing


def test_what_stands_in_the_form_is_what_the_job_has(engine: Engine, connection: Connection) -> None:
    """Sent as it is, it changes nothing but what it says."""
    id = made(connection, args={"a": "ü & <b>"}, queue="mail", priority=2, run_at=timedelta(hours=1))
    before = found(connection, id)
    page = Viewer(engine).see(f"/jobs/{id}/edit")
    assert '"a": "ü & <b>"' in page.text
    fields = {str(one["name"]): one["value"] for one in page.all("input") if "value" in one}
    assert fields["queue"] == "mail"
    done = Viewer(engine).do("edit", **fields, args='{"a": "ü & <b>"}', priority=2)
    assert "Changed 1 job." in done.text
    assert found(connection, id) == before


def test_a_job_is_changed_and_its_change_audited(engine: Engine, connection: Connection) -> None:
    """Not its arguments: whoever reads the audit need not be one who may see them."""
    id = made(connection, args={"a": 1})
    viewer = Viewer(engine, Access.ADMIN.named("ada"))
    viewer.do(
        "edit",
        id=id,
        args='{"card": "4711"}',
        queue="mail",
        priority="9",
        run_at="2031-01-31T09:00",
        next=f"/jobs/{id}",
    )
    job = found(connection, id)
    assert (job.args, job.queue, job.priority) == ({"card": "4711"}, "mail", 9)
    assert job.run_at == datetime(2031, 1, 31, 9, tzinfo=UTC)
    (entry,) = connection.execute(select(AuditEntry.who, AuditEntry.action, AuditEntry.target, AuditEntry.count)).all()
    assert entry == (
        "ada",
        "edit",
        {"id": [str(id)], "queue": ["mail"], "priority": ["9"], "run_at": ["2031-01-31T09:00"]},
        1,
    )


def test_what_is_left_empty_stays(engine: Engine, connection: Connection) -> None:
    id = made(connection, args={"a": 1}, queue="mail", priority=2)
    before = found(connection, id)._asdict()
    Viewer(engine).do("edit", id=id, args="", queue="", priority="7", run_at="")
    assert found(connection, id)._asdict() == before | {"priority": 7}


def test_a_failed_job_is_changed_and_run_again(engine: Engine, connection: Connection) -> None:
    id = made(connection, "failed", args={"a": 1}, attempt=3)
    assert {str(one.get("name")) for one in Viewer(engine).see(f"/jobs/{id}/edit").all("button")} >= {"again"}
    Viewer(engine).do("edit", id=id, args='{"a": 2}', again="yes")
    job = found(connection, id)
    assert (job.status, job.args, job.attempt) == ("queued", {"a": 2}, 0)
    later = made(connection, "failed")
    Viewer(engine).do("edit", id=later, run_at="2031-01-31T09:00", again="yes")
    assert found(connection, later).run_at == datetime(2031, 1, 31, 9, tzinfo=UTC)


def test_without_a_change_it_stays_as_it_has_ended(engine: Engine, connection: Connection) -> None:
    id = made(connection, "failed", args={"a": 1})
    Viewer(engine).do("edit", id=id, args='{"a": 2}')
    assert (found(connection, id).status, found(connection, id).args) == ("failed", {"a": 2})


def test_a_job_whose_key_another_has_is_not_changed_either(engine: Engine, connection: Connection) -> None:
    """To change it and run it again is one thing."""
    old = make_job(connection, "failed", uniqueness={"key": "k"}, args={"a": 1})
    made(connection, uniqueness={"key": "k"})
    page = Viewer(engine).do("edit", id=old, args='{"a": 2}', again="yes")
    assert "Nothing was changed" in page.text
    assert (found(connection, old).status, found(connection, old).args) == ("failed", {"a": 1})


def test_a_job_that_runs_by_now_is_left(engine: Engine, connection: Connection) -> None:
    id = made(connection, "running", args={"a": 1})
    page = Viewer(engine).see(f"/jobs/{id}/edit")
    assert "its worker already has its arguments" in page.text
    assert page.all("textarea") == []
    assert "Nothing was changed" in Viewer(engine).do("edit", id=id, args="{}").text
    assert found(connection, id).args == {"a": 1}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"args": "{"}, "expected a JSON object"),
        ({"args": "[1]"}, "expected a JSON object"),
        ({"args": '{"a": NaN}'}, "nan cannot be a number"),
        ({"args": '{"a": "\\u0000"}'}, "NUL character"),
        ({"args": '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}"}, "expected a JSON object"),
        ({"priority": "10"}, "expected a number from 0 to 9"),
        ({"priority": "x"}, "expected a number from 0 to 9"),
        ({"queue": "x" * 201}, "1 to 200 characters"),
        ({"run_at": "soon"}, "expected a time such as"),
        ({}, "expected arguments, a queue, a priority or a time"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_changed(
    engine: Engine, connection: Connection, fields: dict[str, str], said: str
) -> None:
    id = made(connection, "failed", args={"a": 1})
    before = found(connection, id)
    answer = Viewer(engine).send("edit", {"id": id, **fields})
    assert answer.status_code == 400
    assert said in Seen(answer.text).text
    assert found(connection, id) == before


def test_masked_arguments_are_not_in_the_form(engine: Engine, connection: Connection) -> None:
    """And stay as they are, unless others are written. What the mask leaves alone is there."""
    id = made(connection, args={"card": "4711"})

    def mask(task: str, part: str, value: Any) -> Any:
        return {**value, "card": "…"} if "card" in value else value

    viewer = Viewer(engine, format_args=mask)
    page = viewer.see(f"/jobs/{id}/edit")
    assert "4711" not in page.html
    assert "…" not in page.text
    viewer.do("edit", id=id, args="", priority="9")
    assert found(connection, id).args == {"card": "4711"}
    assert '"plain": 1' in viewer.see(f"/jobs/{made(connection, args={'plain': 1})}/edit").text


@pytest.mark.parametrize(
    "access", [Access(can=["edit"], queues=["mail"]), Access(can=["edit"], where=Job.queue == "mail")]
)
def test_no_job_is_moved_out_of_sight(engine: Engine, connection: Connection, access: Access) -> None:
    """Nor into the queue of others; and none of others is changed."""
    mine, theirs = made(connection, queue="mail"), made(connection, queue="other")
    viewer = Viewer(engine, access)
    answer = viewer.send("edit", {"id": mine, "queue": "other"})
    assert answer.status_code == 400
    assert found(connection, mine).queue == "mail"
    assert "Nothing was changed" in viewer.do("edit", id=theirs, priority="9").text
    assert found(connection, theirs).priority == 4
    assert viewer.send("edit", {"id": mine, "again": "yes"}).status_code == 400  # without the right to retry


def test_a_copy_reaches_only_what_its_viewer_may_see(engine: Engine, connection: Connection) -> None:
    theirs = made(connection, queue="other")
    for access in (Access(can=["copy"], queues=["mail"]), Access(can=["copy"], where=Job.queue == "mail")):
        assert "Nothing was changed" in Viewer(engine, access).do("copy", id=theirs).text
    assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.job")) == 1


@pytest.mark.parametrize("action", ["edit", "copy"])
def test_a_form_without_a_job_is_refused(engine: Engine, action: str) -> None:
    assert Viewer(engine).send(action, {"priority": "9"}).status_code == 404


# ---- finding


def leads_to(viewer: Viewer, asked: str) -> str | None:
    answer = viewer.get("/find", q=asked)
    return answer.headers.get("location") if answer.status_code == 303 else None


def test_the_field_is_on_every_page_and_leads_to_what_is_meant(engine: Engine, connection: Connection) -> None:
    id = made(connection, queue="mail")
    connection.execute(
        Stat.__table__.insert().from_select(
            ["seconds", "at", "queue", "task", *COUNTED, "run_seconds", "wait_seconds", "runs", "waits"],
            select(text(f"60, now(), 'sync', 'shop.send', {', '.join('0' for _ in COUNTED)}, 0, 0, '{{}}', '{{}}'")),
        )
    )
    connection.commit()
    viewer = Viewer(engine)
    assert [one["name"] for one in viewer.see("/jobs").all("input", type="search")] == ["q"]
    assert leads_to(viewer, str(id)) == f"/jobs/{id}"
    assert leads_to(viewer, f" {id} ") == f"/jobs/{id}"
    assert leads_to(viewer, "mail") == "/jobs?queue=mail"
    assert leads_to(viewer, "sync") == "/jobs?queue=sync"
    assert leads_to(viewer, "shop.send") == "/jobs?task=shop.send"
    assert leads_to(viewer, "Order:7") == "/jobs?subject=Order%3A7"


def test_what_is_not_known_is_asked(engine: Engine, connection: Connection) -> None:
    viewer = Viewer(engine)
    assert "There is no job 4711 here" in viewer.see("/find", q="4711").text
    page = viewer.see("/find", q="else")
    assert {f"/jobs?{kind}=else" for kind in ("task", "queue", "tag", "key", "error", "subject")} <= set(page.links)
    for odd in (":", "9" * 50, "0", "½", "a:b:c", "<b>", "%"):
        assert viewer.get("/find", q=odd).status_code in (200, 303)
    assert "Type the id of a job" in viewer.see("/find").text


def found_by(viewer: Viewer, asked: str) -> list[str]:
    """The kinds and names that a search lists."""
    listed = Seen(viewer.see("/find", q=asked).html.partition("exactly")[0].partition('class="found"')[2]).text
    return listed.replace(" its jobs", "").split()[1:]


def test_a_part_of_a_name_finds_what_has_it(engine: Engine) -> None:
    """Tasks, queues, workers, schedules, workflows and keys, each kind for those who may see it."""
    with engine.begin() as connection:
        scene = fill(connection)
        connection.execute(
            insert(Schedule).values(name="send weekly", task="shop.report", queue="reports", expression="0 3 * * 1")
        )
        connection.execute(insert(WorkflowRow).values(id=7, name="big_send"))
        connection.execute(insert(WorkflowRow).values(id=8, name="big_sync"))
        connection.execute(update(Job).where(Job.id == scene.running[0]).values(workflow_id=7))
        connection.execute(update(Job).where(Job.id == scene.running[2]).values(workflow_id=8))
    viewer = Viewer(engine)
    assert found_by(viewer, "SEND") == [
        "task",
        "shop.send_receipt",
        "schedule",
        "send",
        "weekly",
        "workflow",
        "big_send",
    ]
    assert found_by(viewer, "repor") == ["task", "shop.report", "queue", "reports"]
    assert found_by(viewer, "web") == ["worker", "web-1:4711", "worker", "web-2:815"]
    assert {"/tasks/shop.send_receipt", "/workflows?name=big_send"} <= set(viewer.see("/find", q="send").links)
    assert leads_to(viewer, "web-1:4711") == "/jobs?worker=web-1%3A4711"
    assert [str(id) in viewer.see("/jobs", worker="web-1:4711").text for id in scene.running] == [
        True,
        True,
        True,
        False,
    ]
    of_sync = Viewer(engine, Access(can={"pause"}, queues={"sync"}))
    assert found_by(of_sync, "s") == ["task", "shop.sync_stock", "queue", "sync", "workflow", "big_sync"]
    tenant = Viewer(engine, Access(can={"pause"}, where=Job.concurrency_key == "42"))
    assert found_by(tenant, "s") == ["workflow", "big_sync"]


def test_a_key_that_only_jobs_have_is_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by a part of its name, whatever the state of its jobs; behind more keys than are read, by its beginning. Viewers find the keys of their jobs."""
    for name, value in {"_KEYS": Kept(0.0), "_TURNS": 5, "_NEWEST": 2}.items():
        monkeypatch.setattr(finding, name, value)
    with engine.begin() as connection:
        for status in ("running", "failed"):
            make_job(connection, status, queue="mail", concurrency_key=f"tenant-{status}")
        make_job(connection, queue="mail", concurrency_key="tenant-later", run_at=timedelta(hours=2))
        make_job(connection, queue="sync", concurrency_key="tenant-ready", priority=9)
        for number in range(20):
            make_job(connection, queue="other", concurrency_key=f"many-{number:02}")
        for status in ("completed", "cancelled"):
            make_job(connection, status, queue="mail", concurrency_key=f"tenant-{status}")
    viewer = Viewer(engine)
    assert {name.removeprefix("tenant-") for name in found_by(viewer, "ENANT")} == {
        "key", "running", "failed", "later", "ready", "completed", "cancelled",
    }  # fmt: skip
    assert leads_to(viewer, "tenant-completed") == "/keys/tenant-completed"
    assert found_by(viewer, "any-17") == []
    assert leads_to(viewer, "many-17") == "/keys/many-17"
    of_sync, of_key = (
        Access(can={"read"}, queues={"sync"}),
        Access(can={"read"}, where=Job.concurrency_key == "tenant-failed"),
    )
    assert found_by(Viewer(engine, of_sync), "tenant") == ["key", "tenant-ready"]
    tenant = Viewer(engine, of_key)
    assert found_by(tenant, "tenant") == ["key", "tenant-failed"]
    link = "/jobs?key=tenant-failed"  # such a viewer may not see the page of a key
    assert (leads_to(tenant, "tenant-failed"), link in tenant.see("/find", q="tenant").links) == (link, True)
    assert "/keys/" not in tenant.see("/find", q="tenant").html


def test_a_command_shows_its_button(engine: Engine) -> None:
    """Nothing is done by looking; a viewer without the right has no button."""
    with engine.begin() as connection:
        fill(connection)
    page = Viewer(engine).see("/find", q="pause mai")
    assert [one["action"] for one in page.all("form", method="post")] == ["/act/pause"]
    assert [one["value"] for one in page.all("input", name="name")] == ["mail"]
    assert [one["action"] for one in Viewer(engine).see("/find", q="Resume shop.").all("form", method="post")] == [
        "/act/resume"
    ] * 4
    assert Viewer(engine, Access.READ).see("/find", q="pause mail").all("form", method="post") == []
    of_queue = Viewer(engine, Access(can={"pause"}, queues={"sync"}))
    assert [one["value"] for one in of_queue.see("/find", q="pause s").all("input", name="name")] == ["sync"]
    with engine.connect() as connection:
        assert connection.scalar(select(LimitRow.paused_at).where(LimitRow.name == "mail")) is None


def test_what_one_may_not_see_is_not_found(engine: Engine, connection: Connection) -> None:
    id = made(connection, queue="secret")
    for access in (Access(can=["read"], queues=["mail"]), Access(can=["read"], where=Job.queue == "mail")):
        viewer = Viewer(engine, access)
        assert leads_to(viewer, str(id)) is None
        assert leads_to(viewer, "secret") is None


def test_it_is_found_below_the_place_where_it_is_mounted(engine: Engine, connection: Connection) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    id = made(connection)
    app = Starlette(routes=[Mount("/ops", Viewer(engine).app)])
    answer = TestClient(app, follow_redirects=False).get("/ops/find", params={"q": id})
    assert answer.headers["location"] == f"/ops/jobs/{id}"


def test_filters_narrow_by_time_attempts_and_what_is_not_wanted(engine: Engine, connection: Connection) -> None:
    """Also what is changed; each value is a chip that is removed by its link. An infinite time hides nothing."""
    error = {"type": "builtins.KeyError", "message": "x", "attempt": 1}
    times = {"created_at": "2030-01-02T00:00Z", "claimed_at": "2030-01-02T03:00Z"}
    ended = {**times, "finished_at": "2030-01-02T04:00Z"}
    old = made(connection, "failed", task="old", queue="mail", attempt=3, errors=[error], **ended)
    new = made(connection, "completed", task="new", attempt=1, finished_at="infinity", claimed_at="-infinity")
    waits = made(connection, task="new", attempt=0)
    viewer = Viewer(engine)
    asked: dict[str, set[int]] = {
        "not_task=new": {old}, "not_task=old&not_task=other": {new, waits}, "not_error=KeyError": {new, waits}, "not_queue=mail": {new, waits},
        "attempts=2": {old}, "took=1h": {old, new}, "took=61m": {new}, "created_after=2030-01-02T00:00&created_before=2030-01-02T00:01": {old},
        "created_before=2030-01-02": {new, waits}, "ended_before=2030-01-02T04:01": {old}, "ended_after=2030-01-02T04:01": {new},
    }  # fmt: skip
    ids = {
        address: {
            int(str(one["value"])) for one in viewer.see(f"/jobs?{address}").all("input", type="checkbox", name="id")
        }
        for address in asked
    }
    assert ids == asked
    chips = [
        one["href"]
        for one in viewer.see("/jobs?status=failed&task=old&task=a&attempts=1").all("a", **{"class": "chip"})
    ]
    assert chips == [
        f"/jobs?status=failed&{rest}" for rest in ("attempts=1&task=a", "attempts=1&task=old", "task=old&task=a")
    ]
    assert viewer.get("/jobs", attempts="x").status_code == viewer.get("/jobs", took="x").status_code == 400
    viewer.do("delete", not_task="new")
    connection.rollback()
    assert set(connection.scalars(select(Job.id))) == {new, waits}
