"""Jobs of the archive in the dashboard: their page, their list, and who may see which."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import (
    Engine,
    create_engine,
    event,
    func,
    insert,
    select,
    text,
)

from sa_jobqueue.dashboard import Access
from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.dashboard.pages.archived import ARCHIVED
from sa_jobqueue.models import ArchivedJob, LogPart, Progress
from tests.dashboard.test_hostile import BAD
from tests.dashboard.test_plans import context_of, reading
from tests.support.archiving import ERROR, archived_job, move
from tests.support.browsing import Seen, Viewer
from tests.support.factory import make_job, unfolding
from tests.support.failures import noted
from tests.support.nightly import nightly
from tests.support.plans import Plan


@pytest.fixture(autouse=True)
def own(database_url: str) -> str:
    """A database of the test's own: its archive has no month yet."""
    return database_url


# ---- the page of a job


def test_a_job_of_the_archive_is_shown_as_it_was(engine: Engine) -> None:
    """With a mark, and without what would change it."""
    with engine.begin() as connection:
        id = make_job(
            connection, "failed", task="shop.charge", queue="mail", args={"order": 7}, result={"a": 1}, errors=[ERROR],
            subject_type="Order", subject_id="7", workflow_id=3, uniqueness={"key": "once"}, schedule_id=5,
        )  # fmt: skip
        lines = [[1.0, "INFO", "it began"], [2.0, "ERROR", "cannot reach postgresql://me:geheim@db/shop"]]
        values = {"job_id": id, "claim_token": 1, "written_at": func.now()}
        connection.execute(insert(LogPart).values(**values, part=0, attempt=1, lines=lines))
        connection.execute(insert(Progress).values(**values, fraction=0.5, message="half", claims=1))
        connection.execute(text("UPDATE sa_jobqueue.job SET workflow_id = NULL WHERE id = :id"), {"id": id})
        move(connection, id)
    page = Viewer(engine).see(f"/jobs/{id}")
    assert page.all("span", id="job-archived")
    for said in (
        "and is in the archive: it has failed after 1 of", "no answer", "File x", '"order": 7', '"a": 1', "it began", "Order:7", "50 % half",
        "moved to the archive", "once",
    ):  # fmt: skip
        assert said in page.text, said
    assert "geheim" not in page.html
    assert page.all("form", method="post") == []
    assert f"/jobs/{id}/edit" not in page.links
    assert Viewer(engine).get(f"/jobs/{id}/edit").status_code == 404
    for action in ("retry", "copy", "edit", "delete"):
        assert "Nothing was changed" in Viewer(engine).do(action, id=id, priority=9).text


def test_a_job_that_is_there_is_not_looked_for_in_the_archive(engine: Engine) -> None:
    archived_job(engine)
    with engine.begin() as connection:
        id = make_job(connection, "completed")
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: seen.append(statement))
    Viewer(engine).see(f"/jobs/{id}")
    assert not any("archived_job" in one for one in seen)


def test_values_of_the_archive_are_shown_as_the_application_says(engine: Engine) -> None:
    """Or not at all."""
    id = archived_job(
        engine, task="shop.charge", args={"card": "4111"}, meta={"pin": "4111"}, result={"number": "4111"}
    )

    def mask(task: str, part: str, value: Any) -> Any:
        return dict.fromkeys(value, f"{task} {part}")

    page = Viewer(engine, format_args=mask).see(f"/jobs/{id}")
    assert "4111" not in page.html
    for part in ("args", "meta", "result"):
        assert f"shop.charge {part}" in page.text

    def fail(*_: Any) -> Any:
        raise ValueError

    assert "4111" not in Viewer(engine, format_args=fail).see(f"/jobs/{id}").html
    viewer = Viewer(engine, Access.READ, format_args=mask)
    assert viewer.get("/archived", args='{"card": "4111"}').status_code == 400
    assert 'name="args"' not in viewer.get("/archived").text


@pytest.mark.parametrize("column", ["args", *nightly("meta", "result", "errors", "logs")])
def test_what_is_large_hides_nothing_else(engine: Engine, column: str) -> None:
    id = archived_job(engine, task="large")
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE sa_jobqueue.archived_job SET {column} = {unfolding(9_000)}"))
    page = Viewer(engine).see(f"/jobs/{id}")
    assert "large" in page.text
    assert "Too large to be shown" in page.text


def test_what_is_no_line_of_ours_hides_nothing_else(engine: Engine) -> None:
    ids = {column: archived_job(engine, task="odd") for column in ("args", "meta", "result", "errors", "logs")}
    with engine.begin() as connection:
        for column, id in ids.items():
            connection.execute(
                text(f"UPDATE sa_jobqueue.archived_job SET {column} = '[7, [1], [1e300, 1, 1]]' WHERE id = {id}")
            )
    assert [column for column, id in ids.items() if "odd" not in Viewer(engine).see(f"/jobs/{id}").text] == []


def test_what_a_row_of_the_archive_says_is_text(engine: Engine) -> None:
    """On every page."""
    error = {"type": f"mod.{BAD}", "message": BAD, "traceback": BAD, "at": BAD, "attempt": 1}
    id = archived_job(
        engine, "failed", task=BAD, queue=BAD, args={BAD: BAD}, meta={"tags": [BAD]}, errors=[error], result={BAD: BAD},
        subject_type="Order", subject_id=BAD, concurrency_key=BAD, worker=BAD,
    )  # fmt: skip
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE sa_jobqueue.archived_job SET progress_message = :bad, progress = 1"), {"bad": BAD}
        )
    failures: list[str] = []
    for page in PAGES:
        for fragment in (False, True):
            answer = Viewer(engine).get(page.path.replace("{id}", str(id)), fragment=fragment)
            with noted(failures, answer.url):
                seen = Seen(answer.text)
                assert not [found for _, found in seen.elements for name in found if name.startswith("on")]
                assert seen.all("img") == []
                assert "<script>alert" not in answer.text
    assert not failures, "\n".join(failures)


# ---- the list, and the ways to it


def test_the_way_to_the_archive_is_shown_where_there_is_one(engine: Engine) -> None:
    """With the filter of the jobs; and the field in the head finds an id there."""
    with engine.begin() as connection:
        there = make_job(connection)
    page = Viewer(engine).see("/jobs", queue="mail")
    assert not [one for one in page.links if one.startswith("/archived")]
    assert "No archived jobs." in Viewer(engine).see("/archived").text
    id = archived_job(engine, queue="mail")
    fresh = create_engine(engine.url)
    viewer = Viewer(fresh)
    assert "/archived?queue=mail" in viewer.see("/jobs", queue="mail").links
    assert f"/jobs/{id}" in viewer.see("/archived", queue="mail").links
    assert f"/jobs/{there}" not in viewer.see("/archived").links
    for found in (there, id):
        assert viewer.get("/find", q=str(found)).headers["location"] == f"/jobs/{found}"
    assert viewer.get("/find", q=str(id + 1_000)).status_code == 200
    assert viewer.get(f"/jobs/{id + 1_000}").status_code == 404
    fresh.dispose()


def test_a_time_that_python_cannot_hold_hides_no_other_job(engine: Engine) -> None:
    """Plain SQL has written it."""
    ids = [archived_job(engine, created_at=created) for created in ("-infinity", "infinity", timedelta(0))]
    assert [f"/jobs/{id}" in Viewer(engine).see("/archived").links for id in ids] == [True] * 3


def test_the_list_is_narrowed_by_a_month_and_the_filter_of_the_jobs(engine: Engine) -> None:
    now = archived_job(
        engine, "failed", queue="mail", task="send", errors=[ERROR], meta={"tags": ["vip"]}, args={"n": 1}, subject_type="Order", subject_id="7",
        concurrency_key="acme",
    )  # fmt: skip
    before = archived_job(engine, finished_at=timedelta(days=-40), created_at=timedelta(days=-40))
    with engine.connect() as connection:
        months = connection.scalars(
            select(func.to_char(ArchivedJob.finished_at.op("AT TIME ZONE")("UTC"), "YYYY-MM")).order_by(ArchivedJob.id)
        ).all()
    viewer = Viewer(engine)

    def listed(**query: Any) -> list[int]:
        page = viewer.see("/archived", **query)
        return [int((one["id"] or "").removeprefix("job-")) for one in page.all("tr") if "id" in one]

    assert listed() == [before, now]
    assert listed(month=months[0]) == [now]
    assert listed(month=months[1]) == [before]
    assert listed(month="2000-01") == []
    for given in (
        {"id": now}, {"status": "failed"}, {"queue": "mail"}, {"task": "send"}, {"tag": "vip"}, {"args": '{"n": 1}'}, {"subject": "Order:7"},
        {"subject": "Order"}, {"error": "Down"}, {"key": "acme"},
    ):  # fmt: skip
        assert listed(**given) == [now], given
        assert listed(**given, month=months[1]) == []
    assert {one["value"] for one in viewer.see("/archived").all("option")} >= set(months)
    for month in ("x", "2026-13", "1900-01", "9999-12", "2026-1", "2026-01-01"):
        assert viewer.get("/archived", month=month).status_code == 400
    assert listed(month="8999-12") == []


def test_pages_go_on_by_the_id_and_a_filter_looks_at_some_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.archived._PAGE", 2)
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.archived.MOST", 4)
    with engine.begin() as connection:
        ids = [make_job(connection, "completed", queue="mail" if n == 0 else "other") for n in range(9)]
        move(connection, *ids)
    viewer = Viewer(engine)

    def walk(**query: Any) -> list[list[int]]:
        found, page = [], viewer.see("/archived", **query)
        while True:
            found.append([int((one["id"] or "").removeprefix("job-")) for one in page.all("tr") if "id" in one])
            if not (older := page.all("a", rel="next")):
                return found
            page = viewer.see(older[0]["href"] or "")

    whole = list(reversed(ids))
    assert walk() == [whole[:2], whole[2:4], whole[4:6], whole[6:8], whole[8:]]
    assert walk(queue="mail") == [[], [], ids[:1]]
    assert f"Searched down to id {ids[5]}." in viewer.see("/archived", queue="mail").text
    assert walk(id=ids[0]) == [ids[:1]]


FILL = """
INSERT INTO sa_jobqueue.archived_task (name) VALUES ('kept');
SELECT sa_jobqueue.make_archive_months(ARRAY(SELECT now() - make_interval(months => n) FROM generate_series(0, 11) AS n));
INSERT INTO sa_jobqueue.archived_job (id, finished_at, run_at, created_at, claims, priority, attempt, max_attempts, rescues, status, queue, task,
    args, meta, errors)
SELECT n, now() - make_interval(months => 11 - n / 1000), now(), now(), 1, 4, 1, 1, 0, 'completed', 'q' || mod(n, 5), 'kept', '{}', '{}', '[]'
FROM generate_series(0, 11999) AS n;
ANALYZE sa_jobqueue.archived_job;
"""


QUERIES = (
    "", "before=6000", "id=7", "subject=Order:7", "queue=q1", "task=none", "tag=t", "error=x", 'args={"n":1}', "status=failed",
    "status=queued", "month={month}", "month={month}&task=none",
)  # fmt: skip


def test_a_page_of_the_archive_reads_no_more_than_some(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the filter, of twelve months: by indexes, and a part of the rows. So do pages of a viewer of one queue."""
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.archived.MOST", 200)
    with engine.begin() as connection:
        connection.exec_driver_sql(FILL)
        month = str(connection.scalar(text("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM')")))
    failures: list[str] = []
    for queues in (None, ["q1"]):
        for query in QUERIES:
            with noted(failures, (query, queues)):
                reads_no_more_than_some(engine, query.replace("{month}", month), queues)
    assert not failures, "\n".join(failures)


def reads_no_more_than_some(engine: Engine, query: str, queues: list[str] | None) -> None:
    seen: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        if "sa_jobqueue.archived_job" in statement:
            seen.append((statement, parameters))

    with reading(engine) as connection:
        context = context_of(connection, query, queues=queues)
        event.listen(connection, "before_cursor_execute", note)
        ARCHIVED.read(context)
        event.remove(connection, "before_cursor_execute", note)
        assert seen
        for statement, parameters in seen:
            explained: Any = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            plan = Plan(explained.scalar_one()[0]["Plan"])
            touched = 0
            for node in plan.nodes():
                if str(node.get("Relation Name", "")).startswith("archived_job_"):
                    rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
                    touched += rows
            assert touched < 1_200, plan
