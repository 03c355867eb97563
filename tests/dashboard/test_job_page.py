"""The page of one job: what it shows, what it hides, and what can be done there."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, literal, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from sa_jobqueue import Subject, Unique, Workflow, enqueue, task
from sa_jobqueue.dashboard import Access
from sa_jobqueue.health.one_job import SHOWN
from sa_jobqueue.models import Job, UniqueKey
from sa_jobqueue.sql.notes import write_logs, write_progress
from sa_jobqueue.statements import job_steps, list_audit, pause
from tests.support.browsing import Seen, Viewer
from tests.support.factory import make_job, row, statuses, unfolding


@pytest.fixture
def connection(engine: Engine) -> Any:
    with engine.connect() as made:
        yield made


def made(connection: Connection, status: str = "queued", **columns: Any) -> int:
    id = make_job(connection, status, **columns)
    connection.commit()
    return id


def actions(page: Seen) -> set[str]:
    return {str(one["action"]).removeprefix("/act/") for one in page.all("form", method="post")}


# ---- what it shows


def test_a_job_that_waits_says_why(engine: Engine, connection: Connection) -> None:
    connection.execute(pause("mail", reason="the provider is down"))
    page = Viewer(engine).see(f"/jobs/{made(connection, queue='mail')}")
    assert "waits for pause mail to end: the provider is down" in page.text
    assert "sa-jobqueue resume mail" in page.text
    assert "no live one serves queue mail" in page.text


def test_a_job_names_the_tasks_of_its_follow_ups(engine: Engine, connection: Connection) -> None:
    """Extras that were written by hand show none."""

    def seen(extras: Any) -> str:
        return Viewer(engine).see(f"/jobs/{made(connection, extras=literal(extras, JSONB))}").text

    assert "On failure shop.notify" in seen({"on_failure": {"task": "shop.notify", "args": {}}})
    for odd in ([], {"on_failure": "shop.notify"}, {"on_failure": {"task": None}}):
        assert "On failure" not in seen(odd)


def test_every_attempt_is_there_with_its_traceback(engine: Engine, connection: Connection) -> None:
    """The last one first."""
    errors = [
        {
            "attempt": n,
            "at": f"2026-11-2{n}T10:00:00+00:00",
            "type": "shop.Down",
            "message": f"no {n}",
            "traceback": f"File {n}",
        }
        for n in (1, 2, 3)
    ]
    id = made(connection, "failed", errors=errors, attempt=3, max_attempts=3, created_at=timedelta(days=-30))
    page = Viewer(engine).see(f"/jobs/{id}")
    assert re.search(r"Attempt 3 .* no 3 File 3 .*Attempt 2 .* no 2 .*File 2 .*Attempt 1 .* no 1", page.text)
    assert "has failed" in page.text
    assert "after 3 of 3 attempts" in page.text


def test_its_way_is_drawn_and_listed(engine: Engine, connection: Connection) -> None:
    """Within the drawing, however odd its times are."""
    id = made(
        connection, "completed", created_at=timedelta(seconds=-100), run_at=timedelta(seconds=-100), claimed_at=timedelta(seconds=-60),
        finished_at=timedelta(seconds=-20),
    )  # fmt: skip
    page = Viewer(engine).see(f"/jobs/{id}")
    bars = {one["class"]: (int(one["x"] or 0), int(one["width"] or 0)) for one in page.all("rect")}
    assert bars == {"wait": (0, 1000), "good": (500, 500)}
    assert re.search(r"enqueued .* attempt 1 started 40 s .* completed 40 s", page.text)
    assert "Waited once due 40 s" in page.text
    for odd in (
        {"finished_at": timedelta(days=-3)},
        {"created_at": timedelta(days=3)},
        {"run_at": "infinity", "claimed_at": "-infinity"},
        {"finished_at": "infinity", "created_at": "-infinity"},
    ):
        page = Viewer(engine).see(f"/jobs/{made(connection, 'completed', **odd)}")
        for one in page.all("rect"):
            assert int(one["x"] or 0) >= 0
            assert int(one["width"] or 0) > 0
            assert int(one["x"] or 0) + int(one["width"] or 0) <= 1000


@task(name="page.sync")
def sync(shop: int) -> None: ...


def test_a_job_that_failed_and_was_cancelled_later_ran_until_it_failed(engine: Engine, connection: Connection) -> None:
    """Such a job is left by a retry that was undone."""
    times = {"created_at": "2026-01-01 10:00Z", "run_at": "2026-01-01 10:00Z", "claimed_at": "2026-01-01 10:00Z"}
    failed = {"type": "E", "message": "m", "traceback": "", "attempt": 1, "at": "2026-01-01T10:00:03Z"}
    id = made(connection, "cancelled", **times, finished_at="2026-01-01 10:01Z", attempt=1, errors=[failed])
    assert "Ran 3 s" in Viewer(engine).see(f"/jobs/{id}").text


def test_the_times_of_its_reason_are_in_the_viewers_zone(engine: Engine, connection: Connection) -> None:
    """The script finds the times by their element."""
    id = made(connection, "failed", finished_at="2026-01-01 10:01:02Z")
    why = Seen(Viewer(engine).see(f"/jobs/{id}").html.partition('id="job-why"')[2].partition("</section>")[0])
    assert [time["datetime"] for time in why.all("time")] == ["2026-01-01T10:01:02.000000Z"]
    assert re.search(r"It has failed .*at 2026-01-01 10:01:02\+00:00 \(\d+d", why.text)


def test_what_it_belongs_to_is_linked(engine: Engine) -> None:
    with Session(engine) as session:
        flow = Workflow("nightly")
        flow.add(sync, 1)
        unique = sync.options(unique=Unique("sync-1"), key="shop-1", subject=Subject("Shop", "1"))
        session.add_all([flow, first := enqueue(unique, 1)])
        session.flush()
        session.add(second := enqueue(unique, 1))
        session.commit()
        member = session.scalars(select(Job).where(Job.workflow_id.is_not(None))).one()
        viewer = Viewer(engine)
        assert f"/workflows/{member.workflow_id}" in viewer.see(f"/jobs/{member.id}").links
        page = viewer.see(f"/jobs/{first.id}")
        assert {"/jobs?key=shop-1", "/jobs?subject=Shop%3A1"} <= set(page.links)
        assert "sync-1 it holds the key" in page.text
        page = viewer.see(f"/jobs/{second.id}")
        assert page.links.count(f"/jobs/{first.id}") >= 2  # of whom it is a duplicate, and who has the key


def test_recorded_steps_and_a_retry_from_one(engine: Engine, connection: Connection) -> None:
    """Each step has its result, masked by `format_args`. The retry is a new job, which the viewer must confirm and the audit records."""
    id = made(connection, "completed", args={"order": 7}, claim_token=5)
    for n, (name, result) in enumerate({"label": '["geheim"]', "book": f'"{"x" * 2_000}"', "old": None}.items()):
        values = {
            "job_id": id,
            "claim_token": 4,
            "took": 1.5,
            "revision": 1 + n,
            "kind": "step",
            "name": name,
            "result": result,
        }
        sql = "INSERT INTO sa_jobqueue.step (job_id, claim_token, took, revision, kind, name, result) VALUES (:job_id, :claim_token, :took, :revision, :kind, :name, CAST(:result AS jsonb))"
        connection.execute(text(sql), values)
    connection.execute(text("UPDATE sa_jobqueue.step SET unused_by = 5 WHERE name = 'old'"))
    connection.commit()
    viewer = Viewer(engine, format_args=lambda task, part, value: "***" if part == "result" else value)
    page = viewer.see(f"/jobs/{id}")
    assert re.search(
        r'label step .* 1\.5 s "\*\*\*" .* book revision 2 .* too large to be shown: 2\.0 kB .* old revision 3 orphaned',
        page.text,
    )
    assert re.search(r"step recorded label .* step recorded book", page.text)
    assert "geheim" not in page.html
    assert len(page.all("rect", **{"class": "step"})) == 3
    label, book, old = viewer.client.get(f"/jobs/{id}", headers={"accept": "application/json"}).json()["steps"]
    assert (label["result"], book["result"], old["orphaned"]) == ("***", None, True)

    assert "2 recorded steps will run again" in viewer.send("fork", {"id": id, "from_step": "book"}).text
    done = viewer.do("fork", id=id, from_step="book")
    assert "repeats the work from that step on" in done.text
    (fork,) = connection.execute(select(Job.id, Job.args).where(Job.id != id)).all()
    assert fork.args == {"order": 7}
    assert [row.name for row in connection.execute(job_steps(fork.id))] == ["label"]
    (entry,) = connection.execute(list_audit()).all()
    assert (entry.action, entry.target) == ("fork", {"id": [str(id)], "from_step": ["book"], "new": fork.id})
    assert "has no step" in viewer.send("fork", {"id": id, "from_step": "bok", "confirmed": "yes"}).text
    assert "fork" not in actions(Viewer(engine, Access.READ).see(f"/jobs/{id}"))


def test_progress_and_log_lines(engine: Engine, connection: Connection) -> None:
    """Passwords in them are masked; of many lines the last are there."""
    id = make_job(connection, "running")
    lines = ", ".join(f'[{n}, "INFO", "line {n}"]' for n in range(300))
    secret = '[301, "ERROR", "cannot reach postgresql://me:geheim@db/shop"]'
    connection.execute(write_progress(ids=[id], tokens=[1], fractions=[0.42], messages=["half"], ended=[False]))
    connection.execute(
        write_logs(
            ids=[id], tokens=[1], parts=[0], first=[0], attempts=[1], lines=[f"[{lines}, {secret}]"], ended=[False]
        )
    )
    connection.commit()
    page = Viewer(engine).see(f"/jobs/{id}")
    assert page.all("progress")[0]["value"] == "0.42"
    assert "42 % half" in page.text
    assert "line 299" in page.text
    assert "line 100 " not in page.text
    assert "Lines before these: 101." in page.text
    assert "geheim" not in page.html
    assert "line 100 " in Viewer(engine).see(f"/jobs/{id}", logs="all").text


# ---- what it hides


def test_values_are_shown_as_the_application_says(engine: Engine, connection: Connection) -> None:
    id = made(connection, "completed", args={"card": "4711"}, meta={"tags": ["a"]}, result={"card": "4711"}, task="pay")
    asked: list[tuple[str, str]] = []

    def mask(task: str, part: str, value: Any) -> Any:
        asked.append((task, part))
        return {"card": "…"} if "card" in value else value

    page = Viewer(engine, format_args=mask).see(f"/jobs/{id}")
    assert "4711" not in page.html
    assert page.text.count('{ "card": "…" }') == 2
    assert asked == [("pay", "args"), ("pay", "meta"), ("pay", "result")]


@pytest.mark.parametrize("broken", ["raises", "cannot be JSON"])
def test_a_value_that_cannot_be_masked_is_hidden(engine: Engine, connection: Connection, broken: str) -> None:
    """And the page says so, without the value that may stand in the error."""

    class Odd:
        def __str__(self) -> str:
            raise ValueError("4711")

    def mask(task: str, part: str, value: Any) -> Any:
        if broken == "raises":
            raise KeyError("4711")
        return {"x": Odd()}

    id = made(connection, args={"card": "4711"})
    for path in (f"/jobs/{id}", f"/jobs/{id}/edit"):
        assert "4711" not in Viewer(engine, format_args=mask).get(path).text
    page = Viewer(engine, format_args=mask).see(f"/jobs/{id}")
    assert f"format_args failed with {'KeyError' if broken == 'raises' else 'ValueError'}" in page.text


def test_passwords_are_masked_everywhere(engine: Engine, connection: Connection) -> None:
    url = "postgresql://me:geheim@db/shop"
    error = {"attempt": 1, "type": "E", "message": url, "traceback": f"{url} at"}
    id = made(connection, "failed", args={"to": url}, meta={"from": [url]}, errors=[error], result=None)
    page = Viewer(engine).see(f"/jobs/{id}")
    assert "geheim" not in page.html
    assert page.text.count("me:***@db") >= 5


def test_what_is_large_is_not_shown_but_its_size(engine: Engine, connection: Connection) -> None:
    id = make_job(connection, "completed", args={"a": 1}, errors=[{"type": "E", "message": "there"}])
    connection.execute(
        text(
            "UPDATE sa_jobqueue.job SET args = (SELECT jsonb_build_object('x', string_agg(md5(n::text), '')) "
            f"FROM generate_series(1, {SHOWN // 16}) n), meta = (SELECT jsonb_agg(n) FROM generate_series(1, 9000) n)"
        )
    )
    connection.commit()
    page = Viewer(engine).see(f"/jobs/{id}")
    assert re.search(r"Arguments Too large to be shown, or not readable as text: \d+ kB as it is stored", page.text)
    assert "The first 20,000 of" in page.text
    assert "there" in page.text
    assert len(page.html) < 100_000


JSON_COLUMNS = ("args", "meta", "errors", "result")
HOSTILE = {
    "memory": unfolding(9_000),
    "digits": "('[' || repeat('9', 5000) || ']')::jsonb",
    "depth": "(repeat('[', 4000) || repeat(']', 4000))::jsonb",
}


@pytest.mark.parametrize(
    ("column", "hostile"),
    [
        # Each look at what does not fit into memory takes the server seconds.
        pytest.param(column, hostile, marks=[pytest.mark.nightly] if hostile == "memory" and column != "args" else [])
        for hostile in HOSTILE
        for column in JSON_COLUMNS
    ],
)
def test_a_row_that_cannot_be_read_is_shown_without_it(
    engine: Engine, connection: Connection, column: str, hostile: str
) -> None:
    """JSON that does not fit into memory as text, integers without end, depths without end."""
    id = make_job(connection, "failed")
    connection.execute(text(f"UPDATE sa_jobqueue.job SET {column} = {HOSTILE[hostile]} WHERE id = {id}"))
    connection.commit()
    page = Viewer(engine).see(f"/jobs/{id}")
    assert "has failed" in page.text or "there is no answer" in page.text
    assert Viewer(engine).get(f"/jobs/{id}/edit").status_code == 200


# ---- links of the application


@pytest.mark.parametrize(
    ("address", "is_link"),
    [
        ("/orders/7", True),
        ("orders/7", True),
        ("https://shop.example/orders/7", True),
        ("http://shop.example", True),
        ("javascript:alert(1)", False),
        ("JavaScript:alert(1)", False),
        ("java\nscript:alert(1)", False),
        (" javascript:alert(1)", False),
        ("\x01javascript:alert(1)", False),
        ("data:text/html,<script>alert(1)</script>", False),
        ("//evil.example/orders", False),
        ("/\\evil.example", False),
        ("https:evil", False),
        ("vbscript:x", False),
        ("http://[", False),
        ("", False),
        (None, False),
        (7, False),
    ],
)
def test_only_what_leads_to_a_page_is_a_link(
    engine: Engine, connection: Connection, address: Any, is_link: bool
) -> None:
    id = made(connection, subject_type="Order", subject_id="7")
    page = Viewer(engine, link_subject=lambda subject: address).see(f"/jobs/{id}")
    assert (address in page.links) is is_link
    assert "Order:7" in page.text


def test_a_link_that_cannot_be_made_is_none(engine: Engine, connection: Connection) -> None:
    def fails(subject: Subject) -> str:
        raise LookupError(subject.id)

    id = made(connection, subject_type="Order", subject_id="7")
    assert "Order:7" in Viewer(engine, link_subject=fails).see(f"/jobs/{id}").text


# ---- who may see it


@pytest.mark.parametrize("path", ["/jobs/{}", "/jobs/{}/edit"])
@pytest.mark.parametrize("access", [Access(can=Access.ADMIN.can, queues=["mail"]), Access(can=Access.ADMIN.can, where=Job.queue == "mail")])  # fmt: skip
def test_the_job_of_another_is_not_there(engine: Engine, connection: Connection, path: str, access: Access) -> None:
    """It is not said whether there is one."""
    theirs, none = made(connection, queue="other"), 4_711
    viewer = Viewer(engine, access)
    pages = [viewer.see(path.format(id), expected=404).text.replace(f"job {id} ", "") for id in (theirs, none)]
    assert pages[0] == pages[1]
    assert viewer.get(path.format(made(connection, queue="mail"))).status_code == 200


def test_one_who_sees_some_jobs_is_not_told_of_others(engine: Engine, connection: Connection) -> None:
    from sa_jobqueue.statements import set_limit

    connection.execute(set_limit("mail", running=1))
    other = make_job(connection, "running", queue="mail", priority=1)
    mine = made(connection, queue="mail", priority=2)
    page = Viewer(engine, Access(can=["read"], where=Job.priority == 2)).see(f"/jobs/{mine}")
    assert "1 of 1 running" in page.text
    assert f"/jobs/{other}" not in page.links
    assert f"/jobs/{other}" in Viewer(engine).see(f"/jobs/{mine}").links


@pytest.mark.parametrize("id", ["0", "x", "-1", str(2**63), "1.5"])
def test_what_is_no_id_is_refused(engine: Engine, id: str) -> None:
    assert "expected an id" in Viewer(engine).see(f"/jobs/{id}", expected=400).text


# ---- what can be done


@pytest.mark.parametrize(
    ("status", "columns", "expected"),
    [
        ("queued", {}, {"cancel", "copy", "discard"}),
        ("queued", {"run_at": timedelta(hours=1)}, {"retry", "cancel", "copy", "discard"}),
        ("running", {}, {"cancel", "copy"}),
        ("failed", {}, {"retry", "copy", "delete"}),
        ("completed", {}, {"retry", "copy", "delete"}),
        ("completed", {"inputs": 1}, {"retry", "delete"}),
        ("blocked", {}, {"cancel", "copy", "discard"}),
    ],
)
def test_the_buttons_are_those_that_can_be_pressed(
    engine: Engine, connection: Connection, status: str, columns: dict[str, Any], expected: set[str]
) -> None:
    """Each of them does something."""
    id = made(connection, status, **columns)
    viewer = Viewer(engine)
    page = viewer.see(f"/jobs/{id}")
    assert actions(page) == expected
    assert (f"/jobs/{id}/edit" in page.links) is (status != "running")
    for action in expected:
        connection.rollback()
        again = made(connection, status, **columns)
        page = viewer.do(action, id=again, next=f"/jobs/{again}" if action != "delete" else "/jobs")
        assert page.all("div", **{"class": "said"})
        assert "Nothing was changed" not in page.text


@pytest.mark.parametrize("right", ["retry", "cancel", "copy", "discard", "delete", "edit"])
def test_each_button_needs_its_right(engine: Engine, connection: Connection, right: Any) -> None:
    for status in ("queued", "failed"):
        id = made(connection, status)
        page = Viewer(engine, Access(can=[right])).see(f"/jobs/{id}")
        assert actions(page) <= {right}
        assert (f"/jobs/{id}/edit" in page.links) is (right == "edit")


def test_a_scheduled_job_is_run_now(engine: Engine, connection: Connection) -> None:
    id = made(connection, run_at=timedelta(hours=1))
    viewer = Viewer(engine)
    assert "Run now" in viewer.see(f"/jobs/{id}").text
    viewer.do("retry", id=id, next=f"/jobs/{id}")
    assert "Run now" not in viewer.see(f"/jobs/{id}").text
    assert statuses(connection)[id] == "queued"


def test_a_copy_is_enqueued_and_shown(engine: Engine, connection: Connection) -> None:
    id = made(connection, "failed", args={"a": 1})
    page = Viewer(engine).do("copy", id=id, next=f"/jobs/{id}")
    assert "Enqueued this copy." in page.text
    (copy,) = set(statuses(connection)) - {id}
    assert f"Job {copy}" in page.text
    assert row(connection, copy).args == {"a": 1}


def test_another_has_the_key_of_a_copy(engine: Engine, connection: Connection) -> None:
    id = made(connection, uniqueness={"key": "k", "on_clash": "raise"})
    page = Viewer(engine).do("copy", id=id, next=f"/jobs/{id}")
    assert "is a duplicate" in page.text
    assert connection.scalar(select(UniqueKey.job_id)) == id
