"""The list of jobs: newest first, a page at a time by id, narrowed by a filter, with a tab and a capped number for each status."""

from __future__ import annotations

from typing import Any

from sqlalchemy import RowMapping, case, func, select

from ...health.one_job import clamped
from ...lifecycle import JobStatus
from ...objects import Subject
from ...statements.chosen import error_type, reading_of
from ...urls import mask_passwords
from ..archive import has_archive
from ..filters import FILTERS, chosen
from ..job_deeds import JOB_DEEDS
from ..look import Look
from ..page import Page
from ..reach import highest_id, reach, tabs

__all__ = ["JOBS"]

_PAGE = 50
_TIMES = ("created_at", "run_at", "claimed_at", "finished_at")


def read_jobs(look: Look) -> dict[str, Any]:
    """A page of jobs, and how many there are of each status."""
    query, job, connection = look.query, look.job, look.connection
    before, highest = query.id("before"), highest_id(look)
    above = highest + 1 if before is None else before
    lowest, within = reach(look, above)
    error = error_type(job)
    statement = (
        select(
            job.id, job.status, reading_of(job).label("reading"), job.queue, job.task, job.attempt, job.max_attempts,
            *(clamped(job.__table__.c[name]).label(name) for name in _TIMES), job.subject_type, job.subject_id, error.label("error_type"),
            case((error.is_not(None), job.errors[-1]["message"].astext)).label("error_message"),
        )
        .where(*chosen(look), *within)
        .order_by(job.id.desc())
        .limit(_PAGE + 1)
    )  # fmt: skip
    rows = connection.execute(statement).mappings().all()
    return {
        "now": connection.scalar(select(func.now())),
        "jobs": [_shown(row) for row in rows[:_PAGE]],
        "before": rows[_PAGE - 1]["id"] if len(rows) > _PAGE else lowest or None,
        "tabs": tabs(look, highest),
        "actions": [name for name, deed in JOB_DEEDS.items() if look.access.may(deed.needs)],
        "filtered": any(query.one(name) for name in FILTERS),
        "searched": None if not lowest or len(rows) > _PAGE else (lowest, above - 1),
        "has_archive": has_archive(look),
        "may_search_arguments": look.options.format_args is None or look.access.may("search_arguments"),
    }


def _shown(row: RowMapping) -> dict[str, Any]:
    """A row as the table shows it."""
    error = ""
    if row["error_type"] is not None:
        error = f"{row['error_type'].rpartition('.')[2]}: {mask_passwords(row['error_message'] or '')}"
    subject = None if row["subject_type"] is None else str(Subject(row["subject_type"], row["subject_id"]))
    when, at = "", None
    if row["finished_at"] is not None:
        when, at = "ended", row["finished_at"]
    elif row["status"] is JobStatus.RUNNING:
        when, at = "started", row["claimed_at"]
    elif row["status"] is JobStatus.QUEUED:
        when, at = "due", row["run_at"]
    return {**row, "error": error, "subject": subject, "when": when, "at": at}


JOBS = Page("jobs", "/jobs", read_jobs)
