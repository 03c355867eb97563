"""Archived jobs: highest ids first, a page at a time, filtered by month and by the filter of the jobs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from ...health.one_job import clamped
from ...rules.lifecycle import FINISHED
from ...sql.chosen import error_type
from ..filters import FILTERS, archive_of, chosen, seen_in_archive
from ..refusals import BadInput
from ..request import ONE, Page, PageContext
from .jobs import error_and_subject

_PAGE = 50
#: The jobs that are searched if neither an index nor a month finds the filter's jobs.
MOST = 10_000
_MONTH = re.compile(r"(19[789]\d|[2-8]\d{3})-(0[1-9]|1[0-2])")


def read_archived(context: PageContext) -> dict[str, Any]:
    """A page of archived jobs; no jobs if nothing is archived, or the viewer may not see it."""
    query, connection = context.query, context.connection
    month, before = _month(query.one("month")), query.id("before")
    archived = seen_in_archive(context)
    shown: dict[str, Any] = {
        "now": context.now(),
        "jobs": [],
        "before": None,
        "searched": None,
        "months": list(filter(_MONTH.fullmatch, archive_of(context).parts)),
        "statuses": [status.value for status in FINISHED],
        "filtered": any(query.one(name) for name in (*FILTERS, "month")),
        "may_search_arguments": context.options.format_args is None or context.access.may("search_arguments"),
    }
    if archived is None:
        return shown
    job: Any = archived.job
    within = [*month_of(job, month), *([] if before is None else [job.id < before])]
    criteria = chosen(archived)
    lowest = None
    if not _is_found(archived):  # the id of the last searched job
        ids = sa.select(job.id).where(*within).order_by(job.id.desc())
        lowest = connection.scalar(ids.offset(MOST - 1).limit(ONE))
    if lowest is not None:
        within.append(job.id >= lowest)
    error = error_type(job)
    statement = (
        sa.select(
            job.id, job.status, job.queue, job.task, job.attempt, job.max_attempts, clamped(job.created_at).label("created_at"),
            job.finished_at, job.subject_type, job.subject_id, error.label("error_type"), job.errors[-1]["message"].astext.label("error_message"),
        )
        .where(*criteria, *within)
        .order_by(job.id.desc())
        .limit(_PAGE + 1)
    )  # fmt: skip
    rows = connection.execute(statement).mappings().all()
    is_full = len(rows) > _PAGE
    return {
        **shown,
        "jobs": [{**row, **error_and_subject(row)} for row in rows[:_PAGE]],
        "before": rows[_PAGE - 1]["id"] if is_full else lowest,
        "searched": None if is_full else lowest,
    }


def _is_found(context: PageContext) -> bool:
    """Whether the filter can use an index: by id, by subject, or no filter at all (newest first)."""
    query, subjects = context.query, context.query.all("subject")
    if query.one("id") or (subjects and all(":" in subject for subject in subjects)):
        return True
    return not (context.mine() or any(query.one(name) for name in FILTERS))


def _month(given: str) -> tuple[int, int] | None:
    if not given:
        return None
    if (found := _MONTH.fullmatch(given)) is None:
        raise BadInput("month", given, "a month, as in 2030-01")
    return int(found[1]), int(found[2])


def month_of(job: Any, month: tuple[int, int] | None) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs that ended in this month. Each month is a partition."""
    if month is None:
        return []
    year, number = month
    begin, end = datetime(year, number, 1, tzinfo=UTC), datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    return [job.finished_at >= begin, job.finished_at < end]


ARCHIVED = Page("archived", "Archive", "/archived", read_archived, in_menu=False)
