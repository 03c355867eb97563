"""Pages as JSON, for programs that ask for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update

from sa_jobqueue.arguments.questions import as_asked
from sa_jobqueue.dashboard import Access
from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.models import Job, Schedule, Wait, WorkflowRow
from tests.support.browsing import Viewer
from tests.support.busy_scene import Scene, fill
from tests.support.factory import make_job, make_jobs

#: A field that goes, or has another name, breaks programs: that needs a line in the changelog.
FIELDS = {
    "/jobs": "id attempt max_attempts state task queue subject error created_at run_at claimed_at finished_at",
    "/questions": "job_id task queue signal question since until",
    "/errors": "task error message group jobs first last",
    "/": (activity := "state verdict in out steps"),
    "/queues/{name}": activity,
    "/tasks/{name}": activity,
    "/tasks": "name completed failed cancelled retried in_per_minute run_p50 run_p95 wait_p50 wait_p95",
    "/queues": "name due queued running limit workers oldest paused in_per_minute out_per_minute wait_p50 wait_p95",
    "/workers": "id name version pressure queues running slots memory stale up unseen draining loop_lag",
    "/schedules": "id job_id name state expression timezone task queue reason problem job_status next paused_at",
    "/workflows": "id jobs name state reason by_status more_jobs created_at finished_at paused_at deadline_at",
    "/jobs/{id}": "id priority attempt max_attempts rescues workflow_id duplicate_of state task queue key unique_key subject worker schedule "
    "progress_message created_at run_at claimed_at finished_at purge_at archived_at progress args meta result why steps errors log",
}
TYPES = {
    "integer": int,
    "number": (int, float),
    "string": str,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def asked(viewer: Viewer, path: str, accept: str = "application/json", **query: Any) -> Any:
    return viewer.client.get(path, params=query or None, headers={"accept": accept})


@pytest.fixture
def scene(engine: Engine) -> Scene:
    with engine.begin() as connection:
        scene = fill(connection)
        connection.execute(
            insert(Schedule).values(name="nightly", task="shop.report", queue="reports", expression="0 3 * * *")
        )
        connection.execute(insert(WorkflowRow).values(id=7, name="flow"))
        wait = {"job_id": make_job(connection, "blocked"), "step": "signal:go", "signal": "go"}
        connection.execute(insert(Wait).values(**wait, question=as_asked("Ship it?", bool)))
        connection.execute(update(Job).where(Job.id == scene.running[2]).values(workflow_id=7))
        return scene


def check(value: Any, schema: dict[str, Any]) -> None:
    """Whether a value has the schema, with all fields and no others."""
    if not schema:
        return
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert isinstance(
        value,
        tuple(kind for name in kinds for kind in [TYPES[name]] if isinstance(kind, type))
        + (float,) * ("number" in kinds),
    )
    if isinstance(value, dict) and "properties" in schema:
        assert value.keys() == schema["properties"].keys() == set(schema["required"])
        for name, inner in schema["properties"].items():
            check(value[name], inner)
    for one in value if isinstance(value, list) else ():
        check(one, schema.get("items", {}))


def test_each_page_has_the_fields_of_its_documentation(engine: Engine, scene: Scene) -> None:
    """And the documentation those of this file."""
    viewer = Viewer(engine)
    document = viewer.get("/openapi.json").json()
    found, unchecked = {}, []
    for path, operation in document["paths"].items():
        schema = operation["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        answer = asked(viewer, path.replace("{id}", str(scene.failed[0])).replace("{name}", "mail"))
        assert answer.status_code == 200, answer.text
        check(answer.json(), schema)
        rows = schema["properties"].get(path[1:])
        unchecked += [path] if rows is not None and not answer.json()[path[1:]] else []
        found[path] = " ".join((schema if rows is None else rows["items"])["properties"])
    assert (found, unchecked) == (FIELDS, [])


@pytest.mark.parametrize(
    ("accept", "is_json"),
    [
        ("application/json", True), ("application/json, */*", True), ("text/html, application/json;q=0.9", False), ("*/*", False),
        ("application/json;q=0", False), ("application/json;q=x", False), ("", False),
    ],
)  # fmt: skip
def test_json_is_for_those_who_name_it(engine: Engine, accept: str, is_json: bool) -> None:
    """Whatever stores answers is told that they depend on it."""
    answer = asked(Viewer(engine), "/jobs", accept)
    assert answer.headers["content-type"].startswith("application/json") == is_json
    assert answer.headers["vary"].startswith("Accept")


def test_an_error_is_json_with_its_status(engine: Engine) -> None:
    viewer, closed = Viewer(engine), Viewer(engine, Access.NONE)
    cases = {"/jobs?id=x": 400, "/jobs/4711": 404, "/nothing": 404, "/audit": 406, "/database": 406}
    answers = {path: asked(viewer, path) for path in cases}
    assert {path: answer.status_code for path, answer in answers.items()} == cases
    assert all(set(answer.json()) == {"error"} for answer in answers.values())
    assert "expected an id" in answers["/jobs?id=x"].json()["error"]
    for path in ("/openapi.json", *(page.path.replace("{id}", "1").replace("{name:path}", "x") for page in PAGES)):
        refused = asked(closed, path)
        assert (refused.status_code, set(refused.json())) == (403, {"error"})


def test_the_next_page_begins_where_the_last_one_ended(engine: Engine) -> None:
    with engine.begin() as connection:
        ids = make_jobs(connection, 60)
    viewer, found = Viewer(engine), list[int]()
    for address in ("/jobs?task=a_task", "/jobs?status=queued"):
        path, found = address, []
        while path:
            answer = asked(viewer, path).json()
            assert answer["is_cut"] is False
            path, found = answer["next"], [*found, *(job["id"] for job in answer["jobs"])]
        assert sorted(found) == sorted(ids)


def test_a_viewer_reads_what_the_page_would_show(engine: Engine, scene: Scene) -> None:
    """Of others nothing, and values as they are masked."""
    with engine.begin() as connection:
        id = make_job(
            connection, "completed", queue="sync", args={"card": "4711"}, result={"url": "postgresql://u:secret@h/d"}
        )
    viewer = Viewer(
        engine, Access(can={"read"}, queues={"sync"}), format_args=lambda task, part, value: {**value, "card": "…"}
    )
    job = asked(viewer, f"/jobs/{id}").json()
    assert (job["args"], job["result"]["card"]) == ({"card": "…"}, "…")
    assert "secret" not in json.dumps(job)
    assert {one["queue"] for one in asked(viewer, "/jobs").json()["jobs"]} == {"sync"}
    assert [one["name"] for one in asked(viewer, "/queues").json()["queues"]] == ["sync"]
    assert asked(viewer, f"/jobs/{scene.failed[0]}").status_code == 404
    assert asked(viewer, "/jobs", args='{"card": "4711"}').status_code == 400
    tenant = Viewer(engine, Access(can={"read"}, where=Job.concurrency_key == "42"))
    assert [asked(tenant, path).status_code for path in ("/tasks", "/queues", "/workers", "/schedules")] == [403] * 4
    assert {one["task"] for one in asked(tenant, "/jobs").json()["jobs"]} == {"shop.sync_stock"}
