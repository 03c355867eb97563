"""Workflows in the dashboard: the list, one of them with its graph, and what can be done."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import TaskName, Workflow
from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import AuditEntry, Job, WorkflowRow
from tests.support.browsing import Seen, Viewer
from tests.support.factory import make_job, row
from tests.support.scenes import fill_workflow
from tests.support.workflows import Flow

HOUR = timedelta(hours=1)


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as made:
        yield made


def flow_of(connection: Connection, *lines: str, name: str = "import", **options: Any) -> Flow:
    flow = Flow(connection, *lines, **options)
    connection.execute(update(WorkflowRow).where(WorkflowRow.id == flow.id).values(name=name))
    connection.commit()
    return flow


def graph_of(page: Seen) -> dict[str, Any]:
    (found,) = [element["data-graph"] for _, element in page.elements if "data-graph" in element]
    assert found is not None
    return json.loads(found)  # type: ignore[no-any-return]


def shape_of(page: Seen) -> tuple[dict[str, tuple[str, int, str]], list[list[str]]]:
    graph = graph_of(page)
    return {box["id"]: (box["name"], box["number"], box["said"]) for box in graph["boxes"]}, graph["edges"]


# ---- the list


def test_each_workflow_says_how_far_it_is(engine: Engine, connection: Connection) -> None:
    flow = flow_of(connection, "a", "b: a", "c: a")
    flow.complete("a")
    flow.fail("b")
    connection.commit()
    page = Viewer(engine).see("/workflows")
    assert f"/workflows/{flow.id}" in page.links
    assert "1 completed, 1 failed, 1 queued" in page.text
    bar = [found for found in page.all("rect") if found["class"] != "empty"]
    assert [(one["class"], one["x"], one["width"]) for one in bar] == [
        ("completed", "0.0", "33.33"), ("failed", "33.33", "33.33"), ("queued", "66.67", "33.33"),
    ]  # fmt: skip


def test_of_a_large_one_the_list_counts_only_a_part(engine: Engine, connection: Connection) -> None:
    fill_workflow(connection, 1_100)
    connection.commit()
    assert "more than 1,000 jobs" in Viewer(engine).see("/workflows").text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"state": "running"}, ["runs"]),
        ({"state": "paused"}, ["waits"]),
        ({"state": "completed"}, ["is done"]),
        ({"state": "failed"}, ["is bad"]),
        ({"state": "cancelled"}, []),
        ({"name": "runs"}, ["runs"]),
        ({"name": "run"}, []),
        ({}, ["is bad", "is done", "waits", "runs"]),
    ],
)
def test_workflows_are_filtered(
    engine: Engine, connection: Connection, query: dict[str, str], found: list[str]
) -> None:
    """The newest first; with the number of those that an index counts."""
    flow_of(connection, "a", name="runs")
    flow_of(connection, "a", name="waits")
    flow_of(connection, "a", name="is done").complete("a")
    flow_of(connection, "a", name="is bad").fail("a")
    connection.execute(update(WorkflowRow).where(WorkflowRow.name == "waits").values(paused_at=func.now()))
    connection.commit()
    page = Viewer(engine).see("/workflows", **query)
    names = [one for one in ("runs", "waits", "is done", "is bad") if f">{one}</a>" in page.html]
    assert sorted(names) == sorted(found)
    assert "running 1 paused 1 completed failed 1 cancelled" in page.text


def test_a_state_that_there_is_not_is_said(engine: Engine) -> None:
    assert "expected one of running, paused" in Viewer(engine).see("/workflows", expected=400, state="lost").text


def test_workflows_come_a_page_at_a_time(engine: Engine, connection: Connection) -> None:
    connection.execute(
        text("INSERT INTO sa_jobqueue.workflow (name) SELECT 'flow ' || n FROM generate_series(1, 60) AS n")
    )
    connection.commit()
    viewer = Viewer(engine)
    (link,) = [found["href"] for found in viewer.see("/workflows").all("a", rel="next")]
    page = viewer.see(str(link))
    assert ">flow 10</a>" in page.html
    assert ">flow 11</a>" not in page.html


# ---- one


def test_a_workflow_is_shown_as_a_graph_a_chart_of_times_and_a_table(engine: Engine, connection: Connection) -> None:
    flow = flow_of(connection, "a", "b: a", "c: a", "d: b ~c")
    flow.complete("a")
    flow.fail("b")
    connection.commit()
    page = Viewer(engine).see(f"/workflows/{flow.id}")
    a, b, c, d = (str(flow.job(name)) for name in "abcd")
    boxes, edges = shape_of(page)
    assert boxes == {
        id: ("a_task", 1, f"{status} · {id}")
        for id, status in ((a, "completed"), (b, "failed"), (c, "queued"), (d, "cancelled"))
    }
    assert sorted(edges) == sorted([[a, b, "cancel"], [a, c, "cancel"], [b, d, "cancel"], [c, d, "run"]])
    assert "on purpose" in page.text
    assert [f"/jobs/{id}" for id in (a, b, c, d) if f"/jobs/{id}" not in page.links] == []
    assert f"settled: {c}" in page.text
    assert "On failure on_failure" in page.text
    rows = [found for found in page.all("tr") if str(found.get("id")).startswith("node-")]
    assert len(rows) == 4
    assert len(page.all("rect", **{"class": "waits"})) == 4


def test_a_large_fan_out_is_one_box(engine: Engine, connection: Connection) -> None:
    """620 jobs: five boxes, of which one stands for nearly all of them."""
    id = fill_workflow(connection, 600)
    connection.commit()
    page = Viewer(engine).see(f"/workflows/{id}")
    boxes, _ = shape_of(page)
    assert sorted(boxes.values()) == [
        ("shop.count_words", 18, "18 blocked"), ("shop.index_page", 18, "18 completed"), ("shop.index_page", 582, "562 completed, 20 blocked"),
        ("shop.list_pages", 1, "completed"), ("shop.publish_index", 1, "blocked"),
    ]  # fmt: skip
    assert "581 completed, 39 blocked" in page.text
    assert "Show each job" not in page.text
    (link,) = [found["href"] for found in page.all("a", rel="next")]
    assert Viewer(engine).see(str(link)).text.count("shop.index_page") > 40


def test_siblings_can_be_seen_one_by_one(engine: Engine, connection: Connection) -> None:
    flow = flow_of(connection, "a", *[f"b{n}: a" for n in range(9)])
    page = Viewer(engine).see(f"/workflows/{flow.id}")
    assert sorted(number for _, number, _ in shape_of(page)[0].values()) == [1, 9]
    (link,) = [one for one in page.links if "unfold=yes" in one]
    assert len(shape_of(Viewer(engine).see(link))[0]) == 10
    (box,) = [box for box in graph_of(page)["boxes"] if box["opens"]]
    assert len(shape_of(Viewer(engine).see(f"/workflows/{flow.id}", open=box["id"]))[0]) == 10


def test_the_head_names_the_first_failure_and_the_jobs_that_come_after_it(
    engine: Engine, connection: Connection
) -> None:
    """With its error, and links to it and to all failed jobs. Boxes that read alike have the job's id."""
    flow = flow_of(connection, "a", "b", "c: b", "d: ~c", "e: d", "f", name="apart")
    flow.fail("b", "f")
    flow.settle()
    connection.commit()
    page = Viewer(engine).see(f"/workflows/{flow.id}", unfold="yes")
    b = flow.job("b")
    assert f"First failed job: {b} a_task : Discard: on purpose" in page.text
    assert "Jobs that come after it: 1 cancelled, 1 queued, 1 blocked." in page.text
    assert f"/jobs?workflow={flow.id}&status=failed" in page.links
    assert shape_of(page)[0][str(b)][2] == f"failed · {b}"


def test_boxes_and_rows_of_a_task_have_the_arguments_that_tell_them_apart(
    engine: Engine, connection: Connection
) -> None:
    """On one line and cut, whatever they contain; as `format_args` returns them; arguments that cannot be read are left out."""
    hostile = "<img src=x onerror=alert(1)>\x1b[2J\n" + 300 * "y" + "z"
    flow = Workflow("apart")
    for page, shop in ((1, "EU"), (hostile, "EU"), (3 * [700 * "long"], "EU")):
        flow.add(TaskName("shop.fetch"), page=page, shop=shop)
    flow.add(TaskName("shop.merge"), into="report")
    session = Session(connection)
    session.add(flow)
    session.flush()
    path = f"/workflows/{flow.id}"
    huge = "jsonb_build_object('page', repeat('1', 90000)::numeric, 'shop', 'EU')"
    connection.execute(
        text(f"INSERT INTO sa_jobqueue.job (task, args, workflow_id) SELECT 'shop.fetch', {huge}, {path[11:]}")
    )
    connection.commit()
    page = Viewer(engine).see(path)
    first, second, third, fourth, fifth = (box["said"] for box in graph_of(page)["boxes"])
    assert (first, fourth) == ("queued · page=1", "queued · into=report")
    assert second == f"queued · page=<img src=…{14 * 'y'}z"
    assert re.fullmatch(r"queued · \d+", third)
    assert re.fullmatch(r"queued · \d+", fifth)
    assert "shop.fetch page=1" in page.text
    assert "<img" not in page.html
    assert "\x1b" not in page.html

    def mask(task: str, part: str, value: Any) -> Any:
        return dict.fromkeys(value, "***")

    masked = Viewer(engine, format_args=mask).see(path)
    assert [box["said"] for box in graph_of(masked)["boxes"]][3] == "queued · into=***"
    assert "page=" not in masked.text
    assert "report" not in masked.html


@pytest.mark.parametrize("path", ["/workflows/7", "/workflows/x", "/workflows/0"])
def test_a_workflow_that_is_not_there_is_said(engine: Engine, path: str) -> None:
    assert Viewer(engine).get(path).status_code == (404 if path.endswith("7") else 400)


# ---- actions


def test_a_workflow_is_cancelled_after_a_question(engine: Engine, connection: Connection) -> None:
    """With how many jobs that ends; the jobs say who it was."""
    flow = flow_of(connection, "a", "b: a", "c: b")
    flow.complete("a")
    connection.commit()
    viewer = Viewer(engine, Access.ADMIN.named("ada"))
    assert "/act/cancel_workflow" in viewer.see("/workflows").html
    question = viewer.send("cancel_workflow", {"id": flow.id})
    assert "Jobs that have not ended: 2." in Seen(question.text).text
    assert flow.statuses()["b"] == "queued"
    connection.rollback()
    page = viewer.do("cancel_workflow", id=flow.id, next=f"/workflows/{flow.id}")
    assert "Cancelled 1 workflow: waiting jobs have ended, and running jobs are asked to stop." in page.text
    assert set(flow.statuses().values()) == {"completed", "cancelled"}
    assert "cancelled by ada" in flow.reason("b")
    entries = connection.execute(select(AuditEntry.action, AuditEntry.target, AuditEntry.count)).all()
    assert entries == [("cancel_workflow", {"id": [str(flow.id)]}, 1)]


def test_a_workflow_is_paused_and_resumed(engine: Engine, connection: Connection) -> None:
    flow = flow_of(connection, "a")
    viewer = Viewer(engine)
    path = f"/workflows/{flow.id}"
    assert "paused" in viewer.do("pause_workflow", id=flow.id, next=path).text
    assert flow.row().paused_at is not None
    connection.rollback()
    assert "Resume the workflow" in viewer.see(path).text
    viewer.do("resume_workflow", id=flow.id, next=path)
    assert flow.row().paused_at is None


def test_what_failed_is_retried(engine: Engine, connection: Connection) -> None:
    """All of it, or one node and what was cancelled because of it."""
    flow = flow_of(connection, "a", "b", "c: a", "d: b")
    flow.fail("a", "b")
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.do("retry_node", id=flow.id, node=flow.job("a"), next=f"/workflows/{flow.id}")
    assert "Retried 2 jobs" in page.text
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "failed", "c": "blocked", "d": "cancelled"}
    connection.commit()
    assert "Retried 2 jobs" in viewer.do("retry_workflow", id=flow.id).text
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "queued", "c": "blocked", "d": "blocked"}
    connection.rollback()
    targets = connection.scalars(select(AuditEntry.target).order_by(AuditEntry.id)).all()
    assert targets == [{"id": [str(flow.id)], "node": [str(flow.job("a"))]}, {"id": [str(flow.id)]}]
    assert viewer.send("retry_node", {"id": flow.id}).status_code == 400


def test_the_button_of_a_failed_member_brings_back_what_was_cancelled_because_of_it(
    engine: Engine, connection: Connection
) -> None:
    """With the jobs below it, and nothing else; a retry with other arguments does so, too."""
    flow = flow_of(connection, "a", "b", "c: a", "d: b")
    flow.fail("a", "b")
    flow.settle()
    connection.commit()
    viewer = Viewer(engine)
    page = viewer.do("retry", id=flow.job("a"), next=f"/jobs/{flow.job('a')}")
    assert "where they wait for the jobs before them: 2 jobs." in page.text
    viewer.do("edit", id=flow.job("b"), priority=7, again="yes")
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "queued", "c": "blocked", "d": "blocked"}


def test_what_another_job_has_failed_for_is_not_retried_before_it(engine: Engine, connection: Connection) -> None:
    """It would be cancelled again at once: its row has no button, and a form of an older page is refused."""
    flow = flow_of(connection, "a", "b: a", "c: b")
    flow.fail("a")
    flow.settle()
    connection.commit()
    viewer, path = Viewer(engine), f"/workflows/{flow.id}"
    offered = {found["value"] for found in viewer.see(path).all("input", name="node")}
    assert offered == {str(flow.job("a"))}
    refused = viewer.send("retry_node", {"id": flow.id, "node": flow.job("c")})
    assert refused.status_code == 400
    assert f"its parent, job {flow.job('b')}, has not" in refused.text
    page = viewer.do("retry", id=flow.job("b"))
    assert "Back in their workflows, where they wait for the jobs before them: 1 job." in page.text
    assert "Retried" not in page.text


ACTIONS = ("cancel_workflow", "pause_workflow", "resume_workflow", "retry_workflow", "retry_node")


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_for_a_workflow_that_is_not_there_is_said(engine: Engine, action: str) -> None:
    assert Viewer(engine).send(action, {"id": 7, "node": 1, "confirmed": "yes"}).status_code == 404


def test_a_cancel_asks_by_the_name_of_the_workflow(engine: Engine, connection: Connection) -> None:
    flow = flow_of(connection, "a", name="nightly")
    connection.commit()
    asked = Seen(Viewer(engine).send("cancel_workflow", {"id": flow.id}).text).text
    assert f"Cancel the workflow nightly ({flow.id})? Jobs that have not ended: 1." in asked


ACCESS = [Access(can=Access.ADMIN.can, queues=["mail"]), Access(can=Access.ADMIN.can, where=Job.queue == "mail")]


@pytest.mark.parametrize("access", ACCESS, ids=["queues", "where"])
@pytest.mark.parametrize("action", ACTIONS)
def test_only_who_may_see_all_jobs_of_a_workflow_may_change_it(
    engine: Engine, connection: Connection, access: Access, action: str
) -> None:
    """One without a job of theirs is not there for them; of one with some they see these, and no more."""
    others = flow_of(connection, "a", name="of others")
    mixed = flow_of(connection, "a", "b: a", "c: b", name="mixed")
    connection.execute(update(Job).where(Job.id == mixed.job("b")).values(queue="mail"))
    connection.execute(update(Job).where(Job.id == mixed.job("c")).values(task="secret.task"))
    mixed.fail("a")
    mixed.settle()
    connection.commit()
    before = others.statuses(), mixed.statuses()
    connection.rollback()
    viewer = Viewer(engine, access)
    page = viewer.see("/workflows")
    assert "of others" not in page.text
    assert "mixed" in page.text
    assert "/act/" not in page.html
    assert "1 cancelled" in page.text
    assert page.all("span", **{"class": "count"}) == []  # they are numbers of all tenants
    assert viewer.get(f"/workflows/{others.id}").status_code == 404
    shown = viewer.see(f"/workflows/{mixed.id}")
    assert list(shape_of(shown)[0]) == [str(mixed.job("b"))]
    assert "secret.task" not in shown.html
    assert "/act/" not in shown.html
    for flow in (others, mixed):
        fields = {"id": flow.id, "node": flow.job("a"), "confirmed": "yes"}
        assert viewer.send(action, fields).status_code == 404
    assert (others.statuses(), mixed.statuses()) == before


@pytest.mark.parametrize("access", ACCESS, ids=["queues", "where"])
def test_who_may_see_all_jobs_of_a_workflow_may_change_it(
    engine: Engine, connection: Connection, access: Access
) -> None:
    flow = flow_of(connection, "a", "b: a")
    connection.execute(update(Job).where(Job.workflow_id == flow.id).values(queue="mail"))
    connection.commit()
    assert "Cancelled 1 workflow: " in Viewer(engine, access).do("cancel_workflow", id=flow.id).text


def test_a_job_of_another_workflow_is_not_retried_from(engine: Engine, connection: Connection) -> None:
    """The node must be one of the workflow's."""
    flow = flow_of(connection, "a")
    other = make_job(connection, "failed")
    connection.commit()
    assert "Nothing was changed." in Viewer(engine).do("retry_node", id=flow.id, node=other).text
    assert row(connection, other).status == "failed"


def test_what_a_list_reads_does_not_grow_with_the_workflows(engine: Engine, connection: Connection) -> None:
    """By the plan of each of its statements: no table and no index is read as a whole."""
    connection.execute(
        text(
            "INSERT INTO sa_jobqueue.workflow (name, status, finished_at, created_at) SELECT 'flow', CASE WHEN n % 100 = 0 THEN 'failed' "
            "ELSE 'completed' END, now(), now() FROM generate_series(1, 30000) AS n"
        )
    )
    connection.execute(
        text("INSERT INTO sa_jobqueue.job (task, workflow_id) SELECT 'a', n FROM generate_series(29900, 30000) AS n")
    )
    connection.commit()
    connection.execution_options(isolation_level="AUTOCOMMIT").execute(
        text("ANALYZE sa_jobqueue.workflow, sa_jobqueue.job")
    )
    seen = plans_of(
        engine,
        lambda: [
            Viewer(engine).see("/workflows", **query) for query in ({}, {"state": "failed"}, {"state": "running"})
        ],
    )
    assert len(seen) > 6
    assert [plan for plan in seen if most_rows(plan) > 2_100] == []


def plans_of(engine: Engine, look: Any) -> list[Any]:
    """The plans of all SELECTs of a look, with what each of their nodes has read."""
    from sqlalchemy import event

    statements: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "FROM sa_jobqueue." in statement:
            statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    look()
    event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        connection.exec_driver_sql("SET enable_seqscan = off")
        return [
            connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar_one()[0][
                "Plan"
            ]
            for statement, parameters in statements
        ]


def most_rows(plan: Any) -> int:
    """What one node below reads at most, with what it throws away."""
    own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) if "Relation Name" in plan else 0
    return max([int(own), *(most_rows(one) for one in plan.get("Plans", []))])
