"""The list of jobs as CSV, with chosen columns; and the names that its filter suggests."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text, update

from sa_jobqueue.dashboard import Access
from sa_jobqueue.dashboard.pages.jobs import COLUMNS
from sa_jobqueue.models import Job
from tests.support.browsing import Viewer
from tests.support.busy_scene import fill
from tests.support.factory import make_job, make_jobs, unfolding


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as made:
        yield made


def table(answer: Any) -> list[list[str]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.reader(StringIO(answer.text, newline="")))


def asked(viewer: Viewer, path: str, accept: str = "text/csv") -> Any:
    return viewer.client.get(path, headers={"accept": accept})


def test_a_list_is_csv_for_those_who_name_it_and_by_its_link(engine: Engine, connection: Connection) -> None:
    """By the rights and filters of the page. Nothing is a formula for a spreadsheet, and arguments are masked."""
    for bad in ('=HYPERLINK("http://x")', "+1", "-1", "@x", "\t=1", "\n=1", " =1", "＝1"):
        make_job(
            connection, "failed", task=bad, queue="mail", args={"card": "4711"}, errors=[{"type": "E", "message": bad}]
        )
    make_job(connection, "failed", queue="other")
    connection.commit()
    access = Access(can=["read"], queues=["mail"])
    viewer = Viewer(engine, access, format_args=lambda task, part, value: {**value, "card": "…"})
    names, *rows = table(asked(viewer, "/jobs?status=failed&cols=task,args&cols=error,attempt"))
    assert names == ["task", "args", "error", "attempt"]
    assert {row[0] for row in rows} == {
        '\'=HYPERLINK("http://x")',
        "'+1",
        "'-1",
        "'@x",
        "'\t=1",
        "'\n=1",
        "' =1",
        "'＝1",
    }
    assert {row[1] for row in rows} == {'{"card": "…"}'}
    page = viewer.see("/jobs", status="failed", before="5")
    (link,) = [link for link in page.links if "as=csv" in link]
    linked = viewer.get(link)
    assert (table(linked)[0][:3], len(table(linked))) == (["id", "state", "task"], 5)
    assert linked.headers["content-disposition"] == 'attachment; filename="jobs.csv"'
    assert "next" not in linked.headers.get("link", "")
    assert [asked(viewer, path).status_code for path in ("/tasks", "/jobs?id=x", "/jobs?cols=x")] == [406, 400, 400]
    assert asked(viewer, "/jobs?as=csv", "application/json").headers["content-type"] == "application/json"


def test_tags_are_masked_as_meta_is(engine: Engine, connection: Connection) -> None:
    """They are masked in the list, in CSV and in the suggestions of the filter."""
    make_job(connection, meta={"tags": ["vip"]})
    connection.commit()
    viewer = Viewer(engine, format_args=lambda task, part, value: {} if part == "meta" else value)
    assert "vip" in Viewer(engine).get("/jobs").text
    assert "vip" not in viewer.get("/jobs?cols=tags").text
    assert table(asked(viewer, "/jobs?cols=tags")) == [["tags"], [""]]
    assert table(asked(Viewer(engine), "/jobs?cols=tags")) == [["tags"], ["vip"]]


@pytest.mark.parametrize("status", ["queued", "failed"])
def test_a_csv_that_is_not_all_tells_where_it_goes_on(
    engine: Engine, connection: Connection, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.jobs._CSV", 2)
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.jobs._CSV_BY_DUE", 2)
    ids = make_jobs(connection, 5, status)
    connection.commit()
    viewer, found = Viewer(engine), list[str]()
    path = f"/jobs?status={status}&as=csv"
    while path:
        answer = viewer.get(path)
        found += [row[0] for row in table(answer)[1:]]
        path = answer.headers.get("link", "").partition(">")[0].removeprefix("<")
        assert answer.headers["content-disposition"].endswith('-part.csv"' if path else '"jobs.csv"')
    assert sorted(map(int, found)) == ids


def test_the_address_chooses_the_columns(engine: Engine, connection: Connection) -> None:
    """In their order; also of rows that no page can read; and links keep them."""
    make_job(
        connection, "completed", meta={"tags": ["a", "b"]}, concurrency_key="acme", subject_type="Order", subject_id="7"
    )
    odd = [make_job(connection, "completed", meta={"tags": tags}) for tags in ("x", {"a": 1}, [[1], None], "[" * 3_000)]
    large = make_job(connection, args={"text": "x" * 50_000})
    connection.execute(update(Job).where(Job.id == odd[0]).values(args=text(unfolding(20)), finished_at="infinity"))
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.see("/jobs", cols="key,tags,subject,args,took,worker")
    assert "Key Tags About a row Arguments Ran Worker" in page.text
    assert "acme a, b Order:7" in page.text
    assert "Too large to be shown, or not readable as text" in page.text
    ticked = {str(box["value"]) for box in page.all("input", name="cols", type="checkbox") if "checked" in box}
    assert ticked == {"key", "tags", "subject", "args", "took", "worker"}
    assert all("cols=" in link for link in page.links if "status=" in link)
    assert viewer.get("/jobs", cols=",".join(COLUMNS), id=str(large)).status_code == 200


def test_the_fields_of_the_filter_suggest_what_the_viewer_may_know(engine: Engine) -> None:
    with engine.begin() as connection:
        fill(connection)
        make_job(connection, queue="sync", task="<b>", meta={"tags": ["urgent", 7, None]}, concurrency_key="42")
    page = Viewer(engine).see("/jobs")
    fields = {field["name"]: field["list"] for field in page.all("input") if field.get("list")}
    assert fields == {
        "task": "known-task", "queue": "known-queue", "tag": "known-tag", "worker": "known-worker", "not_task": "known-task",
        "not_queue": "known-queue",
    }  # fmt: skip
    of_all = {str(option["value"]) for option in page.all("option")}
    assert {"mail", "sync", "shop.send_receipt", "<b>", "urgent", "web-1:4711"} <= of_all
    of_queue = {
        str(option["value"])
        for option in Viewer(engine, Access(can=["read"], queues={"sync"})).see("/jobs").all("option")
    }
    assert {"sync", "<b>", "urgent"} <= of_queue
    assert not {"mail", "shop.send_receipt"} & of_queue
    tenant = Viewer(engine, Access(can=["read"], where=Job.concurrency_key == "42")).see("/jobs")
    found = {str(option["value"]) for option in tenant.all("option")}
    assert {"sync", "<b>", "urgent"} <= found
    assert not {"mail", "web-1:4711"} & found


def test_a_search_reads_the_statistics_once_in_some_seconds(engine: Engine) -> None:
    """However many letters are typed."""
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: seen.append(statement))
    viewer = Viewer(engine)
    for part in ("s", "se", "sen"):
        viewer.see("/find", q=part, list="1")
    assert sum("sa_jobqueue.stat" in statement for statement in seen) == 1
