"""Jobs of the archive: those with the highest ids first, a page at a time, narrowed by a month and by the filter of the jobs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from ...arguments.subjects import Subject
from ...health.one_job import clamped
from ...rules.failures import error_text
from ...rules.lifecycle import FINISHED
from ...sql.chosen import error_type
from ..filters import FILTERS, archive_of, chosen, seen_in_archive
from ..refusals import BadInput
from ..request import Page, PageContext

_PAGE = 50
#: Jobs that are looked at where no index and no month finds those of a filter.
MOST = 10_000
_MONTH = re.compile(r"(19[789]\d|[2-8]\d{3})-(0[1-9]|1[0-2])")


def read_archived(context: PageContext) -> dict[str, Any]:
    """A page of them; none where nothing is archived, or the viewer may see nothing of it."""
    query, connection = context.query, context.connection
    month, before = _month(query.one("month")), query.id("before")
    archived = seen_in_archive(context)
    shown: dict[str, Any] = {
        "now": connection.scalar(sa.select(sa.func.now())),
        "jobs": [],
        "before": None,
        "searched": None,
        "months": [one for one in archive_of(context).parts if _MONTH.fullmatch(one)],
        "statuses": [status.value for status in FINISHED],
        "filtered": any(query.one(name) for name in (*FILTERS, "month")),
        "may_search_arguments": context.options.format_args is None or context.access.may("search_arguments"),
    }
    if archived is None:
        return shown
    job: Any = archived.job
    within = [*month_of(job, month), *([] if before is None else [job.id < before])]
    criteria = chosen(archived)
    lowest = None if _is_found(archived) else connection.scalar(_last(job, within))
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
        "jobs": [_shown(row) for row in rows[:_PAGE]],
        "before": rows[_PAGE - 1]["id"] if is_full else lowest,
        "searched": None if is_full else lowest,
    }


def _is_found(context: PageContext) -> bool:
    """Whether an index finds the jobs: by their ids, or their row; or all are asked for, of which the newest are shown."""
    query, subjects = context.query, context.query.all("subject")
    if query.one("id") or (subjects and all(":" in subject for subject in subjects)):
        return True
    return not (context.mine() or any(query.one(name) for name in FILTERS))


def _last(job: Any, within: list[sa.ColumnElement[bool]]) -> Any:
    """The id of the last of the jobs that are looked at."""
    return sa.select(job.id).where(*within).order_by(job.id.desc()).offset(MOST - 1).limit(sa.literal_column("1"))


def _month(given: str) -> tuple[int, int] | None:
    if not given:
        return None
    if (found := _MONTH.fullmatch(given)) is None:
        raise BadInput("month", given, "a month, as in 2030-01")
    return int(found[1]), int(found[2])


def month_of(job: Any, month: tuple[int, int] | None) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs that ended in this month, of which each is a partition."""
    if month is None:
        return []
    year, number = month
    begin, end = datetime(year, number, 1, tzinfo=UTC), datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    return [job.finished_at >= begin, job.finished_at < end]


def _shown(row: sa.RowMapping) -> dict[str, Any]:
    """A row as the table shows it."""
    error = ""
    if row["error_type"] is not None:
        error = error_text(row["error_type"].rpartition(".")[2], row["error_message"])
    subject = None if row["subject_type"] is None else str(Subject(row["subject_type"], row["subject_id"]))
    return {**row, "error": error, "subject": subject}


ARCHIVED = Page("archived", "Archive", "/archived", read_archived, in_menu=False)
