"""What the dashboard does with the tasks of the application: it enqueues a job by a form, and tries a job."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple
from datetime import UTC, datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from ...arguments.secrets import secret_in
from ...errors import JobQueueError, OptionError, PayloadError, TaskError
from ...health.one_job import read_job
from ...rules.lifecycle import HELD
from ...statements import insert_jobs
from ...tasks.options import MAX_PRIORITY, Unique
from ...tasks.tasks import AnyTask
from ...util.urls import mask_passwords
from ...worker.running.effects import RowChange
from ...worker.running.trial import SECONDS, Tried, try_job
from ..actions import Done, PageAction
from ..database import Anywhere
from ..query import Query
from ..refusals import BadForm, BadInput, Refusal, refusal_of
from ..render import masked_by_name, shown_value
from ..request import FormatArgs, Missing, Options, Page, PageContext

# ---- A form that enqueues a job. Its fields come from the handler's parameters.

#: How the names of the fields for arguments begin; no option has such a name.
_PREFIX = "arg."
_PRIORITIES = range(MAX_PRIORITY + 1)
#: The options of a job in the form, and how each is read.
_OPTIONS: Mapping[str, Callable[[Query], Any]] = {
    "queue": lambda query: query.one("queue"), "priority": lambda query: query.number("priority", 0, _PRIORITIES),
    "delay": lambda query: query.duration("delay"), "key": lambda query: query.one("key"), "unique": lambda query: Unique(query.one("unique")),
}  # fmt: skip


def read_enqueue(context: PageContext) -> dict[str, Any]:
    """The fields for the task of the address, or the tasks to choose from. Raises BadInput for an unknown task."""
    registry, name, task = context.options.registry, context.query.one("task"), None
    if registry is not None and context.access.may("enqueue") and name and (task := registry.get(name)) is None:
        raise BadInput("task", name, "a task of the application")
    return {
        "has_registry": registry is not None, "task": task, "errors": {},
        "tasks": sorted(known.name for known in registry or ()) if context.access.may("enqueue") else [],
        "fields": [] if task is None else _fields(context, task), "priorities": _PRIORITIES,
        "queues": None if context.queues is None else sorted(context.queues),
    }  # fmt: skip


def _fields(context: PageContext, task: AnyTask) -> list[dict[str, Any]]:
    """A field for each parameter: its name in the form, and what is expected."""
    try:
        plan = task.parameters
    except TaskError as error:
        raise BadInput("task", task.name, f"a task whose annotations can be resolved ({error})") from error
    rest = () if plan.rest is None else (plan.rest.name,)
    # Where the application masks arguments, it may mask them.
    defaults = task.defaults if context.options.format_args is None else {}
    return [
        {
            "name": _PREFIX + name, "label": "*" * (2 if name in rest else name == plan.variable) + name, "required": name in plan.required,
            "default": "" if defaults.get(name) is None or name in plan.secrets else json.dumps(defaults[name], ensure_ascii=False),
            "hidden": name in plan.secrets,
            **_shape(Any if name in rest or name == plan.variable else plan.hints[name]),
        }
        for name in (*plan.names, *rest)
    ]  # fmt: skip


def _shape(hint: Any) -> dict[str, Any]:
    """Whether a value of this annotation may be null; the type of its JSON, "" if it is not simple; and its choices as JSON and text."""
    hint = hint if (secret := secret_in(hint)) is None else secret.hint
    try:
        schema = TypeAdapter(hint).json_schema()
    except Exception:  # an object, or a type of the application
        schema = {}
    parts: list[dict[str, Any]] = schema.get("anyOf", [schema])
    found: dict[str, Any] = next((part for part in parts if part.get("type") != "null"), {}) if len(parts) < 3 else {}
    kind = found.get("type", "")
    values: Sequence[Any] = found.get("enum") or ((True, False) if kind == "boolean" else ())
    kind, choices = "" if kind in ("array", "object") else kind, [(json.dumps(value), str(value)) for value in values]
    return {"nullable": any(part.get("type") == "null" for part in parts), "kind": kind, "choices": choices}


def _enqueue(context: PageContext) -> Done:
    """Enqueue the job, and go to it. Raises BadForm."""
    query, job, shown, errors = context.query, context.job, read_enqueue(context), dict[str, str]()
    if (target := shown["task"]) is None:
        raise BadInput("task", query.one("task"), "a task that the dashboard knows")
    args = _arguments(query, shown["fields"], errors)
    for name, read in _OPTIONS.items():
        if query.one(name):
            try:
                target = target.options(**{name: read(query)})
            except (BadInput, OptionError) as error:
                errors[name] = str(error)
    job_id = None
    try:
        positional, named = target.decode(json.dumps(args), what="the arguments")
        call = target.call(*positional, **named)
    except (PayloadError, OptionError) as error:
        errors = _reasons(error, {field["name"] for field in shown["fields"]}) | errors
    else:
        if not errors:
            job_id = context.connection.execute(insert_jobs([call], job=job)).scalar_one()
            if context.connection.scalar(sa.select(job.id).where(job.id == job_id, *context.mine())) is None:
                errors["form"] = "You may not see a job with these values, so you may not enqueue it."
            # A unique job may have replaced the values of the job that has its key.
            holder = context.connection.scalar(sa.select(job.duplicate_of).where(job.id == job_id))
            if holder is not None and not context.seen([holder]):
                errors["form"] = "A job that you may not see has this unique key."
    if errors:
        raise BadForm({**shown, "page": ENQUEUE, "errors": errors})
    return Done(1, to=f"/jobs/{job_id}")


def _arguments(query: Query, fields: Sequence[Mapping[str, Any]], errors: dict[str, str]) -> dict[str, Any]:
    """The arguments by name. Adds the errors of fields that are no JSON."""
    found: dict[str, Any] = {}
    for field in fields:
        text, name = query.one(field["name"]), field["name"].removeprefix(_PREFIX)
        if not text and not (field["required"] and field["nullable"]):
            continue
        try:
            value = text if field["kind"] == "string" and not field["choices"] and text else json.loads(text or "null")
        except (ValueError, RecursionError):
            errors[field["name"]] = "A number is expected." if field["kind"] else 'JSON is expected, as in {"a": [1]}.'
        else:
            found |= value if field["label"].startswith("**") and isinstance(value, dict) else {name: value}
    return found


def _reasons(error: Exception, names: Collection[str]) -> dict[str, str]:
    """The errors by the name of the field; those of no field as "form"."""
    if not isinstance(cause := error.__cause__, ValidationError):
        return {"form": str(error)}
    found: dict[str, str] = {}
    for detail in cause.errors(include_url=False, include_context=False, include_input=False):
        name = f"{_PREFIX}{detail['loc'][0]}" if detail["loc"] else ""
        place = detail["loc"][1:] if name in names else detail["loc"]
        found[name if name in names else "form"] = ": ".join([*map(str, place), detail["msg"]])
    return found


ENQUEUE = Page("enqueue", "Enqueue a job", "/enqueue", read_enqueue, in_menu=False, is_live=False)

# ---- A try of a job: its handler runs here, what it wrote is shown, and nothing of that stays.

#: Held while a handler runs: a `def` handler that takes too long cannot be stopped, and must not be joined by others.
_running = threading.Lock()
#: Seconds beyond the limit until the answer says that the handler goes on; and the most rows that are shown.
_MARGIN, _MOST = 3.0, 200
#: Columns by which rows of jobs are known.
_OF_JOBS = {"task", "queue", "args", "concurrency_key"}


def tryable(context: PageContext, job: Any) -> AnyTask | None:
    """The task, if the viewer may try the job: it says `dry_run=True`, and the job is in the table and not running. None for
    viewers of some jobs, because a handler may write rows of other tenants.
    """
    registry = context.options.registry
    if registry is None or job.archived_at is not None or job.status in HELD or context.access.is_partial:
        return None
    task = registry.get(job.task)
    return task if task is not None and task.dry_run else None


def _try(context: PageContext) -> Done:
    """Find the job. Its handler runs after this transaction, so that the audit has the try however it ends."""
    job_id, options = context.query.id("id") or 0, context.options
    seen = read_job(context.connection, job_id, where=context.mine(), job=context.job)
    if seen is None or (task := tryable(context, seen.job)) is None:
        raise Missing(f"There is no job {job_id} here that you may try.")
    return Done(1, target={"id": [str(job_id)], "task": [task.name]}, view=partial(_tried, job_id, task, options))


async def _tried(job_id: int, task: AnyTask, options: Options, engine: Anywhere) -> dict[str, Any]:
    """Call the handler on a thread of its own. Returns the values of the page."""
    done: Future[Tried] = Future()

    def work() -> None:
        assert options.registry is not None
        try:
            done.set_result(try_job(engine, job_id, task, registry=options.registry, job=options.job))
        except BaseException as error:
            refusal = refusal_of(error) if isinstance(error, Exception) else None
            text = mask_passwords(f"{type(error).__name__}: {error}")
            done.set_exception(refusal or Refusal("refused", str(error) if isinstance(error, JobQueueError) else text))
        finally:
            _running.release()

    if not _running.acquire(blocking=False):
        raise Refusal("trial")
    threading.Thread(target=work, name="sa-jobqueue trial", daemon=True).start()
    waiting = asyncio.wrap_future(done)
    await asyncio.wait([waiting], timeout=SECONDS + _MARGIN)
    if not waiting.done():
        raise Refusal("trial")
    tried, mask = waiting.result(), options.format_args
    jobs = [change for change in tried.effects if change.after.keys() >= _OF_JOBS]
    rows = [change for change in tried.effects if not change.after.keys() >= _OF_JOBS]
    error = None if tried.error is None else list(map(mask_passwords, astuple(tried.error)))
    return {
        "id": job_id, "task": task.name, "outcome": tried.outcome, "error": error, "writes": tried.writes,
        "result": shown_value("result", task.name, tried.result, mask), "steps": tried.steps, "waits_for": tried.waits_for,
        "jobs": [{**row.after, "args": shown_value("args", row.after["task"], row.after["args"], mask)} for row in jobs],
        "rows": [_row(change, task.name, mask) for change in rows[:_MOST]], "more": max(len(rows) - _MOST, 0),
        "lines": [(datetime.fromtimestamp(at, UTC), level, mask_passwords(text)) for at, level, text in tried.lines],
    }  # fmt: skip


def _row(change: RowChange, task: str, mask: FormatArgs | None) -> dict[str, Any]:
    """A row of the application, with the columns that differ: name, value before and value after. Without them if they cannot be masked."""
    before, after = (masked_by_name("row", task, dict(row), mask) for row in (change.before, change.after))
    shown: dict[str, Any] = {"table": change.table, "kind": change.kind, "key": [], "values": None}
    if before is not None and after is not None:
        names = [name for name in change.changed if name not in change.key]
        shown["key"] = [(name, (after or before).get(name)) for name in change.key]
        shown["values"] = [(name, before.get(name), after.get(name)) for name in names]
    return shown


#: The arguments are not in the audit, because its readers may not be allowed to see them.
REGISTRY_ACTIONS = (
    PageAction("enqueue", "Enqueue", "Enqueued this job.", "enqueue", _enqueue, target=("task", *_OPTIONS)),
    PageAction("try", "Try", "Tried {n}.", "try", _try),
)  # fmt: skip
