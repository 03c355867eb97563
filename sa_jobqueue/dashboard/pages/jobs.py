"""The list of jobs: newest first, a page at a time, with a filter, and a tab with a capped number for each status. A list of queued
jobs is ordered by the time at which they are due.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ...arguments.subjects import Subject
from ...health.one_job import clamped
from ...rules.failures import error_text
from ...rules.lifecycle import JobStatus
from ...sql.chosen import error_type, reading_of
from ...util.urls import mask_passwords
from ..actions.jobs import JOB_ACTIONS
from ..filters import FILTERS, chips, chosen, due_page, has_archive, highest_id, is_by_due, reach, tabs
from ..request import Page, PageContext
from .errors import group_sign
from .job import why_each

_PAGE = 50
_TIMES = ("created_at", "run_at", "claimed_at", "finished_at")


def read_jobs(context: PageContext) -> dict[str, Any]:
    """A page of jobs, and the numbers of jobs by status."""
    query, highest = context.query, highest_id(context)
    page = _by_due(context) if is_by_due(query) else _by_id(context, highest)
    statuses = query.all("status") or list(JobStatus)
    shown = {JobStatus(name) if name in set(JobStatus) else JobStatus.QUEUED for name in statuses}
    return {
        "now": context.now(),
        **page,
        "tabs": tabs(context, highest),
        "actions": [
            name
            for name, action in JOB_ACTIONS.items()
            if context.access.may(action.needs) and not shown.isdisjoint(action.statuses)
        ],
        "filtered": any(query.one(name) for name in FILTERS),
        "chips": chips(query),
        "has_archive": has_archive(context),
        "may_search_arguments": context.options.format_args is None or context.access.may("search_arguments"),
    }


def _by_id(context: PageContext, highest: int) -> dict[str, Any]:
    before, job = context.query.id("before"), context.job
    above = highest + 1 if before is None else before
    lowest, within = reach(context, above)
    rows = _rows(context, *chosen(context), *within).order_by(job.id.desc()).limit(_PAGE + 1)
    found = context.connection.execute(rows).mappings().all()
    is_full = len(found) > _PAGE
    return {
        "jobs": [_shown(row) for row in found[:_PAGE]],
        "why": None,
        "next": ("before", found[_PAGE - 1]["id"] if is_full else lowest or None),
        "searched": None if is_full or not lowest else (lowest, above - 1),
        "until": None,
        "is_cut": False,
    }


def _by_due(context: PageContext) -> dict[str, Any]:
    job, page = context.job, due_page(context, _PAGE)
    rows = _rows(context, job.id == sa.func.any(sa.literal(page.ids, sa.ARRAY(sa.BigInteger))))
    return {
        "why": why_each(context, page.ids),
        "jobs": [_shown(row) for row in context.connection.execute(rows.order_by(job.run_at, job.id)).mappings()],
        "next": ("due", page.after),
        "searched": None,
        "until": page.until,
        "is_cut": page.is_cut,
    }


def _rows(context: PageContext, *where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    job = context.job
    error = error_type(job)
    return sa.select(
        job.id, job.status, reading_of(job).label("reading"), job.queue, job.task, job.attempt, job.max_attempts,
        *(clamped(job.__table__.c[name]).label(name) for name in _TIMES), job.subject_type, job.subject_id, error.label("error_type"),
        sa.case((error.is_not(None), job.errors[-1]["message"].astext)).label("error_message"), group_sign(job).label("group"),
    ).where(*where)  # fmt: skip


def error_and_subject(row: sa.RowMapping) -> dict[str, Any]:
    """The texts of the job's error and subject."""
    error = ""
    if row["error_type"] is not None:
        error = error_text(row["error_type"].rpartition(".")[2], mask_passwords(row["error_message"] or ""))
    subject = None if row["subject_type"] is None else str(Subject(row["subject_type"], row["subject_id"]))
    return {"error": error, "subject": subject}


def _shown(row: sa.RowMapping) -> dict[str, Any]:
    """A row of the table."""
    when, at = "", None
    if row["finished_at"] is not None:
        when, at = "ended", row["finished_at"]
    elif row["status"] is JobStatus.RUNNING:
        when, at = "started", row["claimed_at"]
    elif row["status"] is JobStatus.QUEUED:
        when, at = "due", row["run_at"]
    return {**row, **error_and_subject(row), "when": when, "at": at}


JOBS = Page("jobs", "Jobs", "/jobs", read_jobs)
