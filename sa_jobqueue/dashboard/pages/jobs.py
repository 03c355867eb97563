"""The list of jobs: newest first, a page at a time by id, narrowed by a filter, with a tab and a capped number for each status.

Where no index leads to the jobs of a filter, a page looks at a range of ids and says so; the next one goes on below it. So each page is
read in milliseconds, however many jobs there are.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import RowMapping, case, func, literal_column, select, union_all

from ...health.one_job import clamped
from ...lifecycle import JobStatus
from ...models import status_literal
from ...objects import Subject
from ...statements.chosen import error_type, reading_of
from ...statements.depths import CAP
from ..filters import FILTERS, chosen, has_index
from ..job_deeds import JOB_DEEDS
from ..look import Look
from ..page import Page

__all__ = ["JOBS"]

_PAGE = 50
#: Ids that a page looks at where no index finds its jobs.
_RANGE = 100_000
_TIMES = ("created_at", "run_at", "claimed_at", "finished_at")


def read_jobs(look: Look) -> dict[str, Any]:
    """A page of jobs, and how many there are of each status."""
    query, job, connection = look.query, look.job, look.connection
    before, highest = query.id("before"), _highest(look)
    above = highest + 1 if before is None else before
    lowest = None if has_index(query) else above - _RANGE if above - _RANGE > 1 else 0
    criteria = [*chosen(look), job.id < above, *([] if lowest is None else [job.id >= lowest])]
    error = error_type(job)
    statement = (
        select(
            job.id, job.status, reading_of(job).label("reading"), job.queue, job.task, job.attempt, job.max_attempts,
            *(clamped(job.__table__.c[name]).label(name) for name in _TIMES), job.subject_type, job.subject_id, error.label("error_type"),
            case((error.is_not(None), job.errors[-1]["message"].astext)).label("error_message"),
        )
        .where(*criteria)
        .order_by(job.id.desc())
        .limit(_PAGE + 1)
    )  # fmt: skip
    rows = connection.execute(statement).mappings().all()
    return {
        "now": connection.scalar(select(func.now())),
        "jobs": [_shown(row) for row in rows[:_PAGE]],
        "before": rows[_PAGE - 1]["id"] if len(rows) > _PAGE else lowest or None,
        "tabs": _tabs(look, highest),
        "actions": [name for name, deed in JOB_DEEDS.items() if look.access.may(deed.needs)],
        "filtered": any(query.one(name) for name in FILTERS),
        "searched": None if lowest is None or len(rows) > _PAGE else (lowest, above - 1),
        "may_search_arguments": look.options.format_args is None or look.access.may("search_arguments"),
    }


def _shown(row: RowMapping) -> dict[str, Any]:
    """A row as the table shows it."""
    error = ""
    if row["error_type"] is not None:
        error = f"{row['error_type'].rpartition('.')[2]}: {row['error_message'] or ''}"
    subject = None if row["subject_type"] is None else str(Subject(row["subject_type"], row["subject_id"]))
    when, at = "", None
    if row["finished_at"] is not None:
        when, at = "ended", row["finished_at"]
    elif row["status"] is JobStatus.RUNNING:
        when, at = "started", row["claimed_at"]
    elif row["status"] is JobStatus.QUEUED:
        when, at = "due", row["run_at"]
    return {**row, "error": error, "subject": subject, "when": when, "at": at}


def _highest(look: Look) -> int:
    """The id of the newest job; 0 where there is none."""
    job = look.job
    return look.connection.scalar(select(job.id).order_by(job.id.desc()).limit(literal_column("1"))) or 0


def _tabs(look: Look, highest: int) -> list[tuple[str, int]]:
    """Each status, and how many jobs of the filter have it, up to a cap; where no index finds them, how many of the newest have."""
    asked = look.query.but(status=())
    criteria = chosen(Look(look.connection, asked, look.access, look.options))
    job = look.job
    parts: list[Any] = []
    for place, status in enumerate(JobStatus):
        recent = [] if has_index(asked.but(status=status.value)) else [job.id > highest - _RANGE]
        some = (
            select(literal_column("1"))
            .select_from(job)
            .where(*criteria, *recent, job.status == status_literal(status))
            .limit(CAP)
        ).subquery(f"of_{status}")
        parts.append(select(literal_column(str(place)).label("place"), func.count().label("number")).select_from(some))
    found = {row.place: row.number for row in look.connection.execute(union_all(*parts))}
    return [(status.value, found[place]) for place, status in enumerate(JobStatus)]


JOBS = Page("jobs", "/jobs", read_jobs)
