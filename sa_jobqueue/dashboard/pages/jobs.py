"""The list of jobs: newest first, a page at a time, with a filter, and a tab with a capped number for each status. A list of queued
jobs is ordered by the time at which they are due.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

import sqlalchemy as sa

from ...arguments.storable import load_any
from ...arguments.subjects import Subject
from ...health.one_job import JobSeen, clamped
from ...models import TASK_GROUP
from ...rules.failures import error_text
from ...rules.lifecycle import JobStatus
from ...sql.chosen import error_type, reading_of
from ...util.urls import mask_passwords
from ..actions.jobs import JOB_ACTIONS
from ..filters import FILTERS, chips, chosen, due_page, has_archive, highest_id, is_by_due, reach, tabs
from ..query import Query
from ..refusals import BadInput
from ..render import masked_by_name, value_of
from ..request import Page, PageContext
from .errors import group_sign
from .find import suggestions
from .job import why_each

#: The number of jobs on a page, and in a CSV. A list of queued jobs reads as many of each queue and key.
_PAGE, _CSV, _CSV_BY_DUE = 50, 5_000, 500
_TIMES = ("created_at", "run_at", "claimed_at", "finished_at")
#: The columns that `cols` in the address can name, with their headings.
COLUMNS: Mapping[str, str] = {
    "id": "Id", "state": "State", "task": "Task", "queue": "Queue", "attempt": "Attempt", "max_attempts": "Attempts at most", "priority": "Priority",
    "key": "Key", "tags": "Tags", "subject": "About a row", "worker": "Worker", "args": "Arguments", "created_at": "Enqueued", "run_at": "Due",
    "claimed_at": "Started", "finished_at": "Ended", "took": "Ran", "last": "Last", "error": "Error",
}  # fmt: skip
_SHOWN = ("id", "state", "task", "queue", "attempt", "created_at", "last", "error")
_IN_CSV = (
    "id", "state", "task", "queue", "attempt", "max_attempts", "subject", "error", "created_at", "run_at", "claimed_at", "finished_at",
)  # fmt: skip
#: Bytes of arguments and tags, as they are stored, up to which a list has them, and their characters.
_LONGEST = 2_000
#: Characters that begin a formula in a spreadsheet, also after spaces; and blanks that get an apostrophe wherever they begin a text.
_FORMULA, _BLANK = ("=", "+", "-", "@", "＝", "＋", "－", "＠"), ("\t", "\r", "\n")


def _columns(query: Query, usual: Sequence[str]) -> list[str]:
    """The names of the chosen columns, in their order; `usual` if none are chosen. Raises BadInput."""
    names = [name.strip() for value in query.all("cols") for name in value.split(",") if name.strip()]
    if unknown := [name for name in names if name not in COLUMNS]:
        raise BadInput("cols", unknown[0], f"some of {', '.join(COLUMNS)}")
    return list(dict.fromkeys(names or usual))


def is_csv(query: Query) -> bool:
    """Whether the request is for CSV."""
    return query.one("as") == "csv"


def as_csv(values: Mapping[str, Any], query: Query) -> str:
    """The jobs of the page as CSV, with a line of names. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    text, names = StringIO(), _columns(query, _IN_CSV)
    writer = csv.writer(text)
    writer.writerow(names)
    places = [{"state": "reading", "last": "at"}.get(name, name) for name in names]
    writer.writerows([_cell(job[place]) for place in places] for job in values["jobs"])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    is_text = isinstance(value, str)
    return f"'{value}" if is_text and (value.startswith(_BLANK) or value.lstrip().startswith(_FORMULA)) else value


def read_jobs(context: PageContext) -> dict[str, Any]:
    """A page of jobs, and the numbers of jobs by status."""
    query, highest = context.query, highest_id(context)
    columns = _columns(query, _SHOWN)
    page = _by_due(context) if is_by_due(query) else _by_id(context, highest)
    if is_csv(query):
        return page
    statuses = query.all("status") or list(JobStatus)
    shown = {JobStatus(name) if name in set(JobStatus) else JobStatus.QUEUED for name in statuses}
    return {
        "now": context.now(),
        **page,
        "tabs": tabs(context, highest),
        "actions": [
            action.name
            for action in JOB_ACTIONS
            if context.access.may(action.needs) and not shown.isdisjoint(action.statuses)
        ],
        "filtered": any(query.one(name) for name in FILTERS),
        "chips": chips(query),
        "columns": columns,
        "all_columns": COLUMNS,
        "known": suggestions(context),
        "has_archive": has_archive(context),
        "may_search_arguments": context.options.format_args is None or context.access.may("search_arguments"),
    }


def _by_id(context: PageContext, highest: int) -> dict[str, Any]:
    before, job = context.query.id("before"), context.job
    above = highest + 1 if before is None else before
    lowest, within = reach(context, above)
    most = _CSV if is_csv(context.query) else _PAGE
    rows = _rows(context, *chosen(context), *within).order_by(job.id.desc()).limit(most + 1)
    found = context.connection.execute(rows).mappings().all()
    is_full = len(found) > most
    return {
        "jobs": [_shown(context, row) for row in found[:most]],
        "why": None,
        "next": ("before", found[most - 1]["id"] if is_full else lowest or None),
        "searched": None if is_full or not lowest else (lowest, above - 1),
        "until": None,
        "is_cut": False,
    }


def _by_due(context: PageContext) -> dict[str, Any]:
    job, page = context.job, due_page(context, _CSV_BY_DUE if is_csv(context.query) else _PAGE)
    rows = _rows(context, job.id == sa.func.any(sa.literal(page.ids, sa.ARRAY(sa.BigInteger))))
    return {
        "why": None if is_csv(context.query) else why_each(context, page.ids),
        "jobs": [
            _shown(context, row) for row in context.connection.execute(rows.order_by(job.run_at, job.id)).mappings()
        ],
        "next": ("due", page.after),
        "searched": None,
        "until": page.until,
        "is_cut": page.is_cut,
    }


def _rows(context: PageContext, *where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    job = context.job
    error = error_type(job)
    return sa.select(
        job.id, job.status, reading_of(job).label("reading"), job.queue, job.task, job.attempt, job.max_attempts, job.priority,
        job.concurrency_key.label("key"), *_more_of(context),
        *(clamped(job.__table__.c[name]).label(name) for name in _TIMES), job.subject_type, job.subject_id, error.label("error_type"),
        sa.case((error.is_not(None), job.errors[-1]["message"].astext)).label("error_message"), group_sign(job).label("group"),
    ).where(*where)  # fmt: skip


def _more_of(context: PageContext) -> list[sa.ColumnElement[Any]]:
    """The columns that only a choice reads, because they take time."""
    job, worker, names = context.job, context.tables.worker, _columns(context.query, ())
    process = sa.func.concat(worker.host, ":", sa.cast(worker.pid, sa.Text), type_=sa.Text())
    of_worker = sa.select(process).where(sa.cast(worker.id, sa.Text) == job.worker)
    took = sa.func.extract("epoch", clamped(job.__table__.c.finished_at) - clamped(job.__table__.c.claimed_at))
    more: dict[str, list[sa.ColumnElement[Any]]] = {
        "args": [_cut(job.args, "args"), sa.func.pg_column_size(job.args).label("args_size")], "tags": [_cut(job.meta["tags"], "tags")],
        "took": [sa.cast(took, sa.Float).label("took")],
        "worker": [sa.func.coalesce(of_worker.correlate(job).scalar_subquery(), job.worker).label("worker")],
    }  # fmt: skip
    return [column for name in names for column in more.get(name, ())]


def _cut(value: Any, name: str) -> sa.ColumnElement[Any]:
    """The JSON as text, without its end if it is long; NULL if it is very long."""
    text = sa.func.left(sa.cast(value, sa.Text), _LONGEST + 1)
    return sa.case((sa.func.pg_column_size(value) <= _LONGEST, text)).label(name)


def _long(context: PageContext, row: sa.RowMapping, name: str) -> str:
    """The arguments or the tags of a job, masked as on its page."""
    text, value = row[name], cast(Any, None)
    with suppress(ValueError, RecursionError):
        value = None if text is None else load_any(text)
    if name == "tags" and text is None:
        return ""
    if name == "tags":
        meta = {"tags": text if value is None else value}
        value = (masked_by_name("meta", row["task"], meta, context.options.format_args) or {}).get("tags")
        return ", ".join(map(str, cast(Sequence[Any], value))) if isinstance(value, list) else str(value or "")
    job = SimpleNamespace(id=row["id"], task=row["task"], args=value)
    seen = JobSeen(job, row["reading"], row["created_at"], {"args": row["args_size"]} if value is None else {})
    shown = value_of("args", seen, context.options.format_args)
    return shown.note or json.dumps(json.loads(shown.said or "null"), ensure_ascii=False)


def error_and_subject(row: sa.RowMapping) -> dict[str, Any]:
    """The texts of the job's error and subject."""
    error = ""
    if row["error_type"] is not None:
        error = error_text(row["error_type"].rpartition(".")[2], mask_passwords(row["error_message"] or ""))
    subject = None if row["subject_type"] is None else str(Subject(row["subject_type"], row["subject_id"]))
    return {"error": error, "subject": subject}


def _shown(context: PageContext, row: sa.RowMapping) -> dict[str, Any]:
    """A row of the table."""
    when, at = "", None
    if row["finished_at"] is not None:
        when, at = "ended", row["finished_at"]
    elif row["status"] is JobStatus.RUNNING:
        when, at = "started", row["claimed_at"]
    elif row["status"] is JobStatus.QUEUED:
        when, at = "due", row["run_at"]
    key = None if (row["key"] or "").startswith(TASK_GROUP) else row["key"]
    long = {name: _long(context, row, name) for name in ("args", "tags") if name in row}
    return {**row, **error_and_subject(row), **long, "key": key, "when": when, "at": at}


JOBS = Page("jobs", "Jobs", "/jobs", read_jobs)
