"""The pages, in the order of the menu; and the fields of the pages that programs read as JSON, with their OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias, cast

from ...version import __version__
from ..filters import FILTERS
from ..query import Query
from ..request import Page
from .archived import ARCHIVED
from .database import AUDIT, DATABASE
from .errors import ERRORS
from .find import FIND
from .job import EDIT, JOB
from .jobs import JOBS
from .limits import KEY, LIMITS
from .overview import OVERVIEW
from .questions import QUESTIONS
from .queues import QUEUES_PAGE, WORKERS
from .registry import ENQUEUE
from .schedules import BACKFILL, SCHEDULES
from .tasks import QUEUE, TASK, TASKS
from .workflow import WORKFLOW
from .workflows import WORKFLOWS

PAGES = (
    OVERVIEW, JOBS, ERRORS, TASKS, QUEUES_PAGE, LIMITS, WORKERS, SCHEDULES, WORKFLOWS, DATABASE, AUDIT,
    BACKFILL, ARCHIVED, QUESTIONS, WORKFLOW, JOB, EDIT, TASK, QUEUE, KEY, ENQUEUE, FIND,
)  # fmt: skip

# ---- JSON.

#: By name: the path of the value in the values of the page, and its type. Fields as a type: an array of objects.
Fields: TypeAlias = "Mapping[str, tuple[str, str | Fields]]"


class Answer(NamedTuple):
    """A page as JSON: an object with these fields; or a list of such objects, `rows` in the values of the page."""

    fields: Fields
    rows: str = ""
    parameters: Sequence[str] = ()


def _typed(**names: str) -> dict[str, tuple[str, str | Fields]]:
    """Fields by type, each a list of names, in which `name=path` tells where the value is."""
    of_each = [(part.partition("="), kind.replace("_", "-")) for kind, text in names.items() for part in text.split()]
    return {name: (path or name, kind) for (name, _, path), kind in of_each}


#: What the pages with charts have in common.
_ACTIVITY = Answer({
    **_typed(string="state=verdict.state verdict=verdict.words", integer="in=verdict.arrived out=verdict.left"),
    "steps": ("activity.rows", _typed(
        date_time="at", boolean="more=depth.more",
        integer="due=depth.due running=depth.running completed=figures.counts.completed failed=figures.counts.failed "
        "cancelled=figures.counts.cancelled retried=figures.counts.retried snoozed=figures.counts.snoozed "
        "suspended=figures.counts.suspended",
        number="in oldest=depth.oldest wait_p50=figures.wait.p50 wait_p95=figures.wait.p95 wait_p99=figures.wait.p99",
    )),
}, "", ("window", "from", "to"))  # fmt: skip
#: By the name of the page.
ANSWERS: Mapping[str, Answer] = {
    "overview": _ACTIVITY, "queue": _ACTIVITY, "task": _ACTIVITY,
    "jobs": Answer(_typed(
        integer="id attempt max_attempts", string="state=reading task queue subject error",
        date_time="created_at run_at claimed_at finished_at",
    ), "jobs", (*FILTERS, "before", "due", "cols")),
    "job": Answer({
        **_typed(
            integer="id=job.id priority=job.priority attempt=job.attempt max_attempts=job.max_attempts rescues=job.rescues "
            "workflow_id=job.workflow_id duplicate_of",
            string="state=reading task=job.task queue=job.queue key unique_key=job.unique_key subject worker schedule progress_message",
            date_time="created_at=job.created_at run_at=job.run_at claimed_at=job.claimed_at finished_at=job.finished_at "
            "purge_at=job.purge_at archived_at=job.archived_at",
            number="progress=job.progress", json="args=values.args meta=values.meta result=values.result",
        ),
        "why": ("why", _typed(string="text=said advice", boolean="needs_help", array="jobs")),
        "steps": ("steps", _typed(
            string="name kind", integer="revision", date_time="ended_at", number="took", boolean="orphaned", json="result",
        )),
        "errors": ("failures", _typed(string="attempt type=name message traceback", date_time="at")),
        "log": ("lines", _typed(integer="attempt", date_time="at", string="level message")),
    }, "", ("logs", "steps")),
    "questions": Answer(_typed(
        integer="job_id", string="task queue signal question=question.text", date_time="since until",
    ), "waits", ("all",)),
    "errors": Answer(_typed(
        string="task error message=line group", integer="jobs", date_time="first last",
    ), "rows", ("task", "error", "group", "floor", "show")),
    "tasks": Answer(_typed(
        string="name",
        integer="completed=figures.counts.completed failed=figures.counts.failed cancelled=figures.counts.cancelled retried=figures.counts.retried",
        number="in_per_minute=in run_p50=figures.run.p50 run_p95=figures.run.p95 wait_p50=figures.wait.p50 wait_p95=figures.wait.p95",
    ), "tasks", ("window", "from", "to")),
    "queues": Answer(_typed(
        string="name=seen.name", integer="due=seen.due queued=seen.queued running=seen.running limit=seen.limit workers=seen.served",
        number="oldest=seen.oldest paused=seen.paused in_per_minute=in out_per_minute=out wait_p50=p50 wait_p95=p95",
    ), "queues"),
    "workers": Answer(_typed(
        string="id name version pressure", array="queues", integer="running slots memory", boolean="stale",
        number="up unseen draining loop_lag",
    ), "workers"),
    "schedules": Answer(_typed(
        integer="id job_id", string="name state expression timezone=zone task queue reason problem job_status",
        date_time="next=times.0.0 paused_at",
    ), "schedules", ("name", "task", "queue", "state", "after")),
    "workflows": Answer(_typed(
        integer="id jobs=number", string="name state reason=note", object="by_status=numbers", boolean="more_jobs=more",
        date_time="created_at finished_at paused_at deadline_at",
    ), "workflows", ("name", "state", "before")),
}  # fmt: skip
_SHAPES: Mapping[str, Callable[[Any], Any]] = {
    # Masked, and without a value that is cut.
    "json": lambda value: None if value.said is None or value.note else json.loads(value.said),
    "date-time": lambda value: value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value),
    "object": dict, "array": list, "string": lambda value: str(value) or None,
}  # fmt: skip


def _at(value: Any, path: str) -> Any:
    """The value at a path of attributes, keys, places in a list, names of pairs, and arguments of a method."""
    for part in path.split("."):
        if value is None:
            return None
        if isinstance(value, (list, tuple)):
            pairs = cast(Sequence[Any], value)
            value = (
                dict(pairs).get(part) if not part.isdecimal() else pairs[int(part)] if len(pairs) > int(part) else None
            )
        elif callable(value):
            value = value(part)
        else:
            value = cast(Any, value)[part] if isinstance(value, Mapping) else getattr(value, part)
    return value


def _shaped(value: Any, kind: str | Fields) -> Any:
    if value is None:
        return None
    return (
        _SHAPES.get(kind, lambda same: same)(value) if isinstance(kind, str) else [_object(row, kind) for row in value]
    )


def _object(value: Any, fields: Fields) -> dict[str, Any]:
    return {name: _shaped(_at(value, path), kind) for name, (path, kind) in fields.items()}


def as_json(page: Page, values: Mapping[str, Any], query: Query, path: str) -> dict[str, Any]:
    """The values of the page at this path and query as an object for JSON."""
    answer = ANSWERS[page.name]
    if not answer.rows:
        return _object(values, answer.fields)
    rows = values[answer.rows]
    counted, most = values.get("of_all", 0), values.get("most", 1)
    is_cut = (
        any(values.get(name) for name in ("is_cut", "cut", "more"))
        or values.get("number", 0) > len(rows)
        or counted >= most
    )
    begins = [values["next"]] if "next" in values else [(name, values.get(name)) for name in ("before", "after")]
    following = next((f"{path}?{query.but(**{name: place})}" for name, place in begins if place is not None), None)
    return {page.name: [_object(row, answer.fields) for row in rows], "next": following, "is_cut": is_cut}


def openapi(title: str, root: str) -> dict[str, Any]:
    """The OpenAPI document of these pages, which are below `root`."""
    text = {"type": "string"}
    error = {"description": "An error", "content": _content({"type": "object", "properties": {"error": text}})}
    following = {"type": ["string", "null"], "description": "The address of the next page; null: there is none."}
    cut = {"type": "boolean", "description": "Whether rows are left out that no next page has."}
    paths: dict[str, Any] = {}
    for page, answer in ((page, ANSWERS[page.name]) for page in PAGES if page.name in ANSWERS):
        schema = _schema(answer.fields)
        if answer.rows:
            properties = {page.name: {"type": "array", "items": schema}, "next": following, "is_cut": cut}
            schema = {"type": "object", "required": list(properties), "properties": properties}
        parameters: list[Any] = [{"name": name, "in": "query", "schema": text} for name in answer.parameters]
        path = page.path.replace(":path", "")
        for name in ("id", "name"):
            if f"{{{name}}}" in path:
                kind = {"type": "integer"} if name == "id" else text
                parameters.append({"name": name, "in": "path", "required": True, "schema": kind})
        content = {**_content(schema), **({"text/csv": {"schema": text}} if page is JOBS else {})}
        responses = {"200": {"description": page.title, "content": content}, "default": error}
        paths[path] = {"get": {"operationId": page.name, "parameters": parameters, "responses": responses}}
    info = {"title": title, "version": __version__}
    return {"openapi": "3.1.0", "info": info, "servers": [{"url": root or "/"}], "paths": paths}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _schema(fields: Fields) -> dict[str, Any]:
    """The schema of an object. Each field may be null."""
    properties: dict[str, Any] = {name: {} for name in fields}
    for name, (_, kind) in fields.items():
        if not isinstance(kind, str):
            properties[name] = {"type": ["array", "null"], "items": _schema(kind)}
        elif kind != "json":
            is_time = kind == "date-time"
            properties[name] = {"type": ["string" if is_time else kind, "null"]} | ({"format": kind} if is_time else {})
    return {"type": "object", "required": list(fields), "properties": properties}
