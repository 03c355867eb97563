"""The dashboard as a whole: who is let in, what every answer carries, and what is said where the database does not answer."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from sa_jobqueue.dashboard import Access, dashboard
from sa_jobqueue.dashboard.app import ACTIONS
from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.dashboard.render import Renderer
from sa_jobqueue.dashboard.security import CSP
from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.models import AuditEntry, Job
from tests.support.browsing import Seen, Viewer
from tests.support.databases import driver_url
from tests.support.factory import make_job, statuses
from tests.support.failures import noted
from tests.support.scenes import REGISTRY, addresses, fill

#: Every page, with something in the place of what its path names.
PATHS = [re.sub(r"\{[^}]*\}", "1", page.path) for page in PAGES]


@pytest.fixture
def connection(engine: Engine) -> Any:
    with engine.connect() as made:
        yield made


# ---- who is let in


@pytest.mark.parametrize("access", [None, Access.NONE], ids=["no callback", "none"])
def test_it_is_closed_unless_it_is_opened(engine: Engine, access: Access | None) -> None:
    """Nothing is read then."""
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: seen.append(statement))
    viewer = Viewer(engine, access)
    failures: list[str] = []
    for path in [*PATHS, "/nowhere"]:
        answer = viewer.get(path)
        with noted(failures, path):
            assert answer.status_code == 403
            assert ("access=..." in answer.text) is (access is None)
    assert not failures, "\n".join(failures)
    assert seen == []


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_needs_its_right(engine: Engine, connection: Connection, action: str) -> None:
    """Others do not help."""
    make_job(connection, "failed")
    connection.commit()
    rights = Access.ADMIN.can - {ACTIONS[action].needs}  # type: ignore[operator]
    for access in (Access.READ, Access(can=rights), Access.NONE):
        assert Viewer(engine, access).send(action, {"id": "1", "confirmed": "yes"}).status_code == 403
    assert connection.scalar(select(func.count()).select_from(AuditEntry)) == 0


def test_who_may_only_look_sees_no_button(engine: Engine, connection: Connection) -> None:
    """On no page."""
    make_job(connection, "failed")
    connection.commit()
    viewer = Viewer(engine, Access.READ)
    assert [path for path in PATHS if "/act/" in viewer.get(path).text] == []


def test_the_status_is_for_viewers_of_all_jobs(engine: Engine) -> None:
    """It counts the problems of all queues."""
    answer = Viewer(engine, Access.READ).get("/status")
    assert answer.json() == {"problems": 0, "behind": None}
    some = (Access.NONE, Access(can={"retry"}, queues={"mail"}), Access(can={"retry"}, where=Job.id == 1))
    assert [Viewer(engine, access).get("/status").status_code for access in some] == [403] * 3
    assert ["data-status" in Viewer(engine, access).get("/jobs").text for access in some] == [False] * 3


@pytest.mark.parametrize("action", [*ACTIONS, "nothing"])
def test_a_change_that_another_site_asks_for_is_refused(engine: Engine, action: str) -> None:
    is_refused(Viewer(engine).client.post(f"/act/{action}", data={"id": "1"}))


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "origin": "http://ops.test"},
    ],
)
def test_each_sign_of_another_site_is_seen(engine: Engine, headers: dict[str, str]) -> None:
    is_refused(Viewer(engine).client.post("/act/retry", data={"id": "1"}, headers=headers))


def is_refused(answer: Any) -> None:
    assert answer.status_code == 403
    assert "trusted_origins" in answer.text


def test_a_change_is_accepted_from_our_own_page_and_from_a_trusted_origin(
    engine: Engine, connection: Connection
) -> None:
    """A browser that sends no Sec-Fetch-Site sends the origin."""
    id = make_job(connection, "failed")
    connection.commit()
    viewer = Viewer(engine, trusted_origins=["https://ops.example"])
    for headers in ({"origin": "http://ops.test"}, {"origin": "https://ops.example", "sec-fetch-site": "cross-site"}):
        assert viewer.client.post("/act/retry", data={"id": id}, headers=headers).status_code == 303
    assert statuses(connection)[id] == "queued"


def test_every_answer_says_that_nothing_from_outside_and_nothing_inline_is_run(engine: Engine) -> None:
    viewer = Viewer(engine)
    failures: list[str] = []
    for path in [*PATHS, "/nowhere", "/static/app.css", "/jobs?before=x"]:
        answer = viewer.get(path)
        with noted(failures, path):
            assert answer.headers["content-security-policy"] == CSP
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == ("public, max-age=604800" if "static" in path else "no-store")
            page = Seen(answer.text)
            assert not [
                found for _, found in page.elements for name in found if name.startswith("on") or name == "style"
            ]
            assert all("src" in found for found in page.all("script"))
    assert not failures, "\n".join(failures)


def test_an_application_may_send_its_own_policy(engine: Engine) -> None:
    assert "content-security-policy" not in Viewer(engine, csp=None).get("/jobs").headers


def test_all_addresses_are_below_the_place_where_it_is_mounted(engine: Engine, connection: Connection) -> None:
    make_job(connection, "failed")
    connection.commit()
    client = TestClient(Starlette(routes=[Mount("/ops/jobs", dashboard(engine, access=lambda _: Access.ADMIN))]))
    failures: list[str] = []
    for path in PATHS:
        page = Seen(client.get(f"/ops/jobs{path}").text)
        addresses = [
            found[name] or ""
            for _, found in page.elements
            for name in ("href", "src", "action", "formaction", "hx-get")
            if name in found
        ]
        with noted(failures, path):
            assert addresses
            assert [one for one in addresses if not one.startswith(("/ops/jobs/", "#", "?"))] == []
    assert not failures, "\n".join(failures)


# ---- what is not there, and what cannot be read


def test_what_is_not_there_is_said(engine: Engine) -> None:
    assert "There is no such page." in Viewer(engine).see("/nowhere", expected=404).text
    assert Viewer(engine).send("nothing").status_code == 404


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"before": "x"}, "before: 'x' was given, expected an id"),
        ({"id": "0"}, "expected an id"),
        ({"id": str(2**63)}, "expected an id"),
        ({"status": "lost"}, "expected one of queued, scheduled"),
        ({"args": "{"}, "expected a JSON object"),
        ({"args": "[1]"}, "expected a JSON object"),
        ({"newer_than": "soon"}, "expected a time such as 45s"),
        ({"subject": ":"}, "expected a type and the key of a row"),
    ],
)
def test_a_filter_that_cannot_be_read_is_said(engine: Engine, query: dict[str, str], said: str) -> None:
    """And nothing is done where it is the filter of an action."""
    assert said in Viewer(engine).see("/jobs", expected=400, **query).text
    if "before" not in query:
        answer = Viewer(engine).send("cancel", {**query, "confirmed": "yes"})
        assert answer.status_code == 400
        assert said in Seen(answer.text).text


def test_what_was_filled_in_is_there_to_be_mended(engine: Engine) -> None:
    """All of it, in a form that is sent where it was meant to go: a filter, and a form that changes something."""
    viewer = Viewer(engine)
    page = viewer.see("/jobs", expected=400, status="failed", queue="mail", newer_than="soon")
    assert ("get", "/jobs") in [(found["method"], found["action"]) for found in page.all("form")]
    fields = {found["name"]: found for found in page.all("input") if found["name"] != "q"}
    assert {name: found["value"] for name, found in fields.items()} == {
        "status": "failed",
        "queue": "mail",
        "newer_than": "soon",
    }
    assert [name for name, found in fields.items() if "aria-invalid" in found] == ["newer_than"]
    assert [name for name, found in fields.items() if found.get("type") == "hidden"] == ["status"]
    sent = Seen(
        viewer.send("set_limit", {"name": "mail", "running": "many", "key_rate": "5/s", "next": "/limits"}).text
    )
    fields = {found["name"]: found for found in sent.all("input") if found["name"] != "q"}
    assert fields["running"]["value"] == "many"
    mended = {name: found["value"] for name, found in fields.items()} | {"running": "3"}
    assert "The limits of queue mail are set." in viewer.do("set_limit", **mended).text


def test_a_form_that_names_no_job_is_refused(engine: Engine, connection: Connection) -> None:
    id = make_job(connection, "failed")
    connection.commit()
    answer = Viewer(engine).send("retry", {"confirmed": "yes", "next": "/jobs"})
    assert answer.status_code == 400
    assert "tick some" in Seen(answer.text).text
    assert statuses(connection)[id] == "failed"


@pytest.mark.parametrize(
    ("body", "kind"),
    [("id=1", "text/plain"), ('{"id": 1}', "application/json"), (b"id=\xff\xfe", "application/x-www-form-urlencoded"), ("a=1&" * 6_000, "application/x-www-form-urlencoded"), ("a" * 1_000_001, "application/x-www-form-urlencoded")],
    ids=["text", "json", "not utf-8", "many", "large"],
)  # fmt: skip
def test_what_is_no_form_is_refused(engine: Engine, body: str | bytes, kind: str) -> None:
    headers = {"content-type": kind, "sec-fetch-site": "same-origin"}
    answer = Viewer(engine).client.post("/act/retry", content=body, headers=headers)
    assert answer.status_code == 400


# ---- what the database says


@pytest.mark.usefixtures("impatient")
def test_a_look_that_takes_too_long_is_given_up(engine: Engine, connection: Connection) -> None:
    make_job(connection)
    connection.commit()
    access = Access(can=["read"], where=text("pg_sleep(10) IS NULL"))  # type: ignore[arg-type]
    page = Viewer(engine, access).see("/jobs")
    assert "Narrow the filter" in page.text


def test_a_database_that_is_away_is_said_and_comes_back(engine: Engine) -> None:
    """Also in what refreshes a page; and it is no error of the server's."""
    gone = create_engine("postgresql+psycopg://127.0.0.1:1/nothing")
    viewer = Viewer(gone)
    for fragment in (False, True):
        answer = viewer.get("/jobs", fragment=fragment)
        assert answer.status_code == 503
        assert "does not answer" in answer.text
    assert Viewer(engine).get("/jobs").status_code == 200


def test_one_who_sees_some_jobs_is_not_told_where_the_database_is() -> None:
    """Who sees all is: it is their way to find out what is wrong."""
    gone = create_engine("postgresql+psycopg://127.0.0.1:1/nothing")
    told = {
        str(queues): "127.0.0.1" in Viewer(gone, Access(can=["read"], queues=queues)).get("/jobs").text
        for queues in (None, {"mail"})
    }
    assert told == {"None": True, "{'mail'}": False}


def test_a_sender_that_leaves_before_its_form_is_there_is_no_fault(engine: Engine) -> None:
    async def leave() -> None:
        headers = [
            (b"content-type", b"application/x-www-form-urlencoded"),
            (b"sec-fetch-site", b"same-origin"),
            (b"host", b"ops.test"),
        ]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/act/retry",
            "raw_path": b"/act/retry",
            "query_string": b"",
            "headers": headers,
            "root_path": "",
        }
        said = iter([{"type": "http.request", "body": b"id=", "more_body": True}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(said)

        async def send(message: Any) -> None:
            answers.append(message.get("status"))

        await Viewer(engine).app(scope, receive, send)

    answers: list[Any] = []
    asyncio.run(leave())
    assert answers[0] == 400


def test_a_schema_that_is_not_there_is_said(engine: Engine) -> None:
    assert "do not fit this release" in Viewer(engine, schema="elsewhere").see("/jobs", expected=503).text


@pytest.mark.usefixtures("impatient")
def test_a_table_that_is_locked_is_waited_for_shortly(engine: Engine) -> None:
    with engine.begin() as holder:
        holder.exec_driver_sql("LOCK TABLE sa_jobqueue.job")
        page = Viewer(engine).see("/jobs", expected=409)
    assert "has locked it" in page.text


def test_a_row_that_is_locked_is_left_by_an_action(engine: Engine, connection: Connection) -> None:
    ids = [make_job(connection, "failed") for _ in range(2)]
    connection.commit()
    connection.execute(select(Job.id).where(Job.id == ids[0]).with_for_update())
    page = Viewer(engine).do("retry", status="failed")
    assert "Retried 1 job." in page.text
    assert "locked or changed them: 1 job." in page.text
    connection.rollback()
    assert statuses(connection) == {ids[0]: "failed", ids[1]: "queued"}


@pytest.mark.usefixtures("impatient")
def test_a_look_changes_nothing(engine: Engine) -> None:
    """By the database's own word: each transaction is READ ONLY, and has a limit of two seconds."""
    seen: list[str] = []

    def note(conn: Connection, cursor: Any, statement: str, *_: object) -> None:
        if "FROM sa_jobqueue.job" in statement and not seen:
            seen.extend(conn.connection.cursor().execute("SHOW transaction_read_only").fetchone())  # type: ignore[union-attr]
            seen.extend(conn.connection.cursor().execute("SHOW statement_timeout").fetchone())  # type: ignore[union-attr]

    event.listen(engine, "before_cursor_execute", note)
    Viewer(engine).see("/jobs")
    assert seen == ["on", "2s"]


def test_many_viewers_cost_one_reading_and_one_rendering(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Viewers with equal rights, who ask for the live part of a page within a second, or while it is read."""
    readings, renderings = list[str](), list[str]()

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if "READ ONLY" in statement:
            readings.append(statement)

    def render(self: Renderer, name: str, *values: Any, **options: Any) -> str:
        renderings.append(name)
        return rendered(self, name, *values, **options)

    rendered = Renderer.page
    monkeypatch.setattr(Renderer, "page", render)
    monkeypatch.setattr("sa_jobqueue.dashboard.shared.monotonic", lambda: 0.0)
    event.listen(engine, "before_cursor_execute", note)
    viewer = Viewer(engine)
    with viewer.client, ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: viewer.get("/jobs", fragment=True), range(50)))
    assert {(answer.status_code, answer.text, answer.headers["sa-jobqueue-part"]) for answer in answers} == {
        (200, answers[0].text, "yes")
    }
    assert (len(readings), renderings) == (1, ["pages/jobs.html"])


def test_what_one_viewer_may_see_is_not_shown_to_another(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the second for which an answer is kept: not as a page, and not as its live part, of which viewers share the HTML."""
    make_job(connection, queue="secret")
    connection.commit()
    monkeypatch.setattr("sa_jobqueue.dashboard.shared.monotonic", lambda: 0.0)
    viewer = Viewer(engine)
    with viewer.client:
        for fragment in (False, True):
            viewer.access = Access.ADMIN.named("ada@example.com")
            text = viewer.get("/jobs", fragment=fragment).text
            assert "secret" in text
            assert "/act/delete" in text
            assert "ada@example.com" not in text
            viewer.access = Access.READ
            text = viewer.get("/jobs", fragment=fragment).text
            assert "secret" in text
            assert "/act/" not in text
            viewer.access = Access(can=["read"], queues=["mail"])
            assert "secret" not in viewer.get("/jobs", fragment=fragment).text
            viewer.access = Access(can=["read"], where=Job.queue == "mail")
            assert "secret" not in viewer.get("/jobs", fragment=fragment).text


def test_a_shared_live_part_has_the_addresses_of_its_own_mount(engine: Engine, connection: Connection) -> None:
    """An application may mount the dashboard twice."""
    make_job(connection)
    connection.commit()
    app = Viewer(engine).app
    with TestClient(Starlette(routes=[Mount("/a", app), Mount("/b", app)])) as client:
        for place, other in (("/a/", "/b/"), ("/b/", "/a/")):
            text = client.get(f"{place}jobs", headers={"hx-request": "true"}).text
            assert f'"{place}jobs/' in text
            assert f'"{other}' not in text


def test_an_async_engine_serves_as_well(engine: Engine, connection: Connection, database_url: str) -> None:
    id = make_job(connection, "failed")
    connection.commit()
    made = create_async_engine(driver_url(database_url, "psycopg"))
    viewer = Viewer(made)
    with viewer.client:
        assert "a_task" in viewer.see("/jobs").text
        assert "Retried 1 job." in viewer.do("retry", id=id).text
        viewer.client.portal.call(made.dispose)  # type: ignore[union-attr]
    assert statuses(connection)[id] == "queued"


def test_an_engine_is_expected() -> None:
    with pytest.raises(ConfigurationError, match="needs an Engine or an AsyncEngine, not 'url'"):
        dashboard("url")  # type: ignore[arg-type]


def test_what_the_callback_returns_is_checked(engine: Engine) -> None:
    viewer = Viewer(engine)
    viewer.access = True  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match="must return an Access, not True"):
        viewer.get("/jobs")
    with pytest.raises(ConfigurationError, match="there is no action 'retyr'"):
        Access(can={"retyr"})
    with pytest.raises(ConfigurationError, match="several names"):
        Access(can="retry", queues="mail")


def test_the_callback_may_be_a_coroutine_function(engine: Engine) -> None:
    async def who(request: Any) -> Access:
        await asyncio.sleep(0)
        return Access.READ.named(request.headers["x-user"])

    app = dashboard(engine, access=who)
    assert TestClient(app).get("/jobs", headers={"x-user": "ada"}).status_code == 200


# ---- actions


def test_an_action_and_its_row_in_the_audit_are_one_transaction(
    database_url: str, engine: Engine, connection: Connection
) -> None:
    ids = [make_job(connection, "failed", queue="mail") for _ in range(3)]
    connection.commit()
    viewer = Viewer(engine, Access.ADMIN.named("ada"))
    viewer.do("retry", queue="mail", status="failed")
    (entry,) = connection.execute(select(AuditEntry.who, AuditEntry.action, AuditEntry.target, AuditEntry.count)).all()
    before = {"failed": ids, "retained": [604_800] * 3, "undo": "fully"}
    assert entry == ("ada", "retry", {"queue": ["mail"], "status": ["failed"], "ids": ids, **before}, 3)
    assert set(statuses(connection).values()) == {"queued"}
    connection.rollback()
    connection.exec_driver_sql("ALTER TABLE sa_jobqueue.audit ADD CHECK (action <> 'cancel')")
    connection.commit()
    answer = viewer.send("cancel", {"id": ids[0]})
    assert answer.status_code == 409
    assert "audit_action_check" in answer.text
    assert set(statuses(connection).values()) == {"queued"}


def test_all_that_match_are_confirmed_with_the_number_that_it_will_be(engine: Engine, connection: Connection) -> None:
    """Found by the same WHERE; nothing is done before."""
    for status in ("failed", "failed", "completed", "running"):
        make_job(connection, status)
    make_job(connection, "failed", queue="other")
    connection.commit()
    viewer = Viewer(engine)
    answer = viewer.send("retry", {"queue": "default", "next": "/jobs?queue=default"})
    page = Seen(answer.text)
    assert "Run 3 jobs again, now?" in page.text  # not the running one
    assert sorted(statuses(connection).values()).count("queued") == 0
    sent = {str(one["name"]): one["value"] for one in page.all("input", type="hidden")}
    done = viewer.send("retry", sent)
    assert done.headers["location"] == "/jobs?queue=default&did=retry&n=3&entry=1&undo=undo_by_cancel"
    assert "Retried 3 jobs." in viewer.see(done.headers["location"]).text


def test_more_than_a_page_is_done_in_several_transactions(engine: Engine, connection: Connection) -> None:
    connection.exec_driver_sql(
        "INSERT INTO sa_jobqueue.job (task, status, finished_at) SELECT 'a_task', 'failed', now() FROM generate_series(1, 2500)"
    )
    connection.commit()
    assert "Retried 2,500 jobs." in Viewer(engine).do("retry", status="failed").text
    counts = connection.scalars(select(AuditEntry.count).order_by(AuditEntry.id)).all()
    assert counts == [1000, 1000, 500]


def test_each_action_has_a_button(engine: Engine) -> None:
    """On some page; `test_browser.py` clicks on them."""
    with engine.begin() as connection:
        scene = fill(connection)
    viewer = Viewer(engine, registry=REGISTRY)
    paused = next(path for path in viewer.see("/workflows?state=paused").links if re.fullmatch(r"/workflows/\d+", path))
    paths = [
        *addresses(scene).values(), paused, f"/jobs/{scene.running}", "/jobs?status=queued", "/jobs?status=completed", "/schedules?state=paused",
    ]  # fmt: skip
    seen = {action for path in paths for action in re.findall(r'action="/act/(\w+)"', viewer.get(path).text)}
    (check, level, detail) = (
        viewer.see("/").all("input", name=name)[0]["value"] for name in ("check", "level", "detail")
    )
    done = [
        *(viewer.do("retry", id=scene.job) for _ in range(2)),
        viewer.do("cancel", id=scene.job),
        viewer.do("acknowledge", check=check, level=level, detail=detail, **{"for": "1h"}),
        viewer.do("open_breaker", owner="task", name="shop.call"),
        viewer.see("/limits"),
    ]
    seen |= {action for page in done for action in re.findall(r'action="/act/(\w+)"', page.html)}
    assert seen == ACTIONS.keys()


def test_what_takes_long_goes_on_with_the_next_request(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.dashboard.app._PATIENCE", -1.0)
    connection.exec_driver_sql(
        "INSERT INTO sa_jobqueue.job (task, status, finished_at) SELECT 'a_task', 'failed', now() FROM generate_series(1, 1500)"
    )
    connection.commit()
    viewer = Viewer(engine)
    answer = viewer.send("retry", {"status": "failed", "confirmed": "yes"})
    assert "1,000 jobs so far" in Seen(answer.text).text
    sent = {str(one["name"]): one["value"] for one in Seen(answer.text).all("input", type="hidden")}
    done = viewer.send("retry", sent)
    assert "Retried 1,500 jobs." in viewer.see(done.headers["location"]).text


@pytest.mark.parametrize("next", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_a_form_leads_back_to_our_own_pages_only(engine: Engine, connection: Connection, next: str) -> None:
    id = make_job(connection, "failed")
    connection.commit()
    answer = Viewer(engine).send("retry", {"id": id, "next": next})
    assert answer.headers["location"].startswith("/?did=retry")


@pytest.mark.parametrize(
    "access",
    [
        Access(can=Access.ADMIN.can, queues=["mail"]),
        Access(can=Access.ADMIN.can, where=Job.queue == "mail"),
    ],
    ids=["queues", "where"],
)
@pytest.mark.parametrize("action", ["retry", "cancel", "discard", "delete"])
def test_an_action_reaches_only_what_its_viewer_may_see(
    engine: Engine, connection: Connection, access: Access, action: str
) -> None:
    """By id, and by a filter."""
    for status in ("failed", "queued", "completed"):
        make_job(connection, status, queue="other")
    connection.commit()
    before = statuses(connection)
    connection.rollback()
    viewer = Viewer(engine, access)
    viewer.do(action, id=sorted(before))
    viewer.do(action, all="yes")
    assert statuses(connection) == before


def test_a_page_looks_at_a_range_of_ids_and_the_next_goes_on_below(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no index finds the jobs of the filter; what is done to all that match is done to those of the range."""
    monkeypatch.setattr("sa_jobqueue.dashboard.filters.RANGE", 10)
    monkeypatch.setattr("sa_jobqueue.dashboard.filters.MOST", 1)
    old = make_job(connection, "failed", queue="mail", id=5)
    for id in range(11, 41):
        make_job(connection, "failed", queue="other", id=id)
    new = make_job(connection, "failed", queue="mail", id=50)
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.see("/jobs", queue="mail")
    assert "Searched from id 41 to 50." in page.text
    assert "completed – failed 1+ cancelled –" in page.text
    assert f"/jobs/{new}" in page.links
    assert f"/jobs/{old}" not in page.links
    assert [one["value"] for one in page.all("input", name="from")][:1] == ["41"]
    for _ in range(4):
        (older,) = [found["href"] or "" for found in page.all("a", rel="next")]
        page = viewer.see(older)
    assert f"/jobs/{old}" in page.links
    assert page.all("a", rel="next") == []
    viewer.do("retry", **{"queue": "mail", "from": "41"})
    assert {id for id, status in statuses(connection).items() if status == "queued"} == {new}


def test_of_many_jobs_of_a_status_the_newest_are_looked_at(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that are blocked no index has the order, so it is a range of ids where they are many."""
    monkeypatch.setattr("sa_jobqueue.dashboard.filters.RANGE", 10)
    monkeypatch.setattr("sa_jobqueue.dashboard.filters.MOST", 5)
    for id in range(1, 41):
        make_job(
            connection, "failed" if id % 2 else "blocked", queue="mail" if id < 10 else "other", id=id, blocked_by=1
        )
    connection.commit()
    viewer = Viewer(engine)
    assert "Searched from id 31 to 40." in viewer.see("/jobs", queue="mail", status="failed").text
    assert "Searched from id 31 to 40." in viewer.see("/jobs", queue="mail", status="blocked").text
    connection.execute(text("DELETE FROM sa_jobqueue.job WHERE status = 'blocked' AND id > 10"))
    connection.commit()
    assert "/jobs/8" in Viewer(engine).see("/jobs", queue="mail", status="blocked").links
