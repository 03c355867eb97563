"""How far a look at jobs goes: so far that it takes milliseconds, however many jobs there are.

Where an index leads to the jobs of a filter, the newest of those that it leads to are looked at; else a range of ids is. What was not
looked at is said, and the next page goes on there.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, select, union_all

from ..lifecycle import JobStatus
from ..models import status_literal
from ..statements.depths import CAP
from .filters import FILTERS, chosen
from .look import Look
from .query import Query

__all__ = ["among_newest", "highest_id", "reach", "tabs"]

#: Ids that are looked at where no index finds the jobs.
RANGE = 100_000
#: Jobs that are looked at of those to which an index leads.
MOST = CAP - 1

_IN_ORDER = (JobStatus.FAILED, JobStatus.RUNNING)
"""An index has the ids of these, each in their order."""
_REST = (JobStatus.QUEUED, JobStatus.COMPLETED, JobStatus.CANCELLED)
"""No index has the ids of these."""


def highest_id(look: Look) -> int:
    """The id of the newest job; 0 where there is none."""
    return look.connection.scalar(select(look.job.id).order_by(look.job.id.desc()).limit(literal_column("1"))) or 0


def reach(look: Look, above: int) -> tuple[int, list[ColumnElement[bool]]]:
    """The lowest id that is looked at of the jobs with lower ids than `above`, 0 where all are; and as criteria."""
    query, job, found = look.query, look.job, None
    within: list[ColumnElement[bool]] = [job.id < above]
    if _is_about_few(query):
        return 0, within
    if workflow := query.id("workflow"):
        found = job.workflow_id == workflow
    elif len(statuses := query.all("status")) == 1 and statuses[0] in set(JobStatus):
        status = JobStatus(statuses[0])
        if status is JobStatus.BLOCKED and not _are_many_blocked(look):
            return 0, [*within, _of(look, status)]
        if status in _IN_ORDER:
            found = _of(look, status)
    if found is None:
        lowest = above - RANGE
    else:
        lowest = look.connection.scalar(_last(look, found, *within)) or 0
    # Ids are from 1 on, unless they were said by hand.
    return (lowest, [*within, job.id >= lowest]) if lowest > 1 else (0, within)


def tabs(look: Look, highest: int) -> list[tuple[str, int]]:
    """Each status, and how many of the jobs that are looked at have it, up to a cap."""
    asked = look.query.but(status=())
    found = dict.fromkeys(JobStatus, 0)
    for part in _counts(Look(look.connection, asked, look.access, look.options), highest):
        rows: Any = look.connection.execute(part)
        found |= {JobStatus(status): min(number, CAP) for status, number in rows}
    return [(status.value, number) for status, number in found.items()]


def _counts(look: Look, highest: int) -> list[Any]:
    """Statements that count by status."""
    job, criteria = look.job, chosen(look)
    if _is_about_few(look.query) or look.query.one("workflow"):
        few = select(job.status).where(*criteria).limit(len(JobStatus) * CAP).subquery()
        return [select(few.c.status, func.count()).group_by(few.c.status)]
    newest = select(job.status).where(*criteria, job.id > highest - RANGE).subquery()
    rest = [status_literal(status) for status in _REST]
    parts: list[Any] = []
    for status in JobStatus:
        if status in _REST:
            continue
        if any(look.query.one(name) for name in FILTERS) or look.mine():
            which = among_newest(look, status)
        else:
            which = _of(look, status)
        some = select(literal_column("1")).select_from(job).where(*criteria, which).limit(CAP).subquery(f"of_{status}")
        parts.append(select(status_literal(status), func.count()).select_from(some))
    return [
        select(newest.c.status, func.count()).where(newest.c.status.in_(rest)).group_by(newest.c.status),
        union_all(*parts),
    ]


def _is_about_few(query: Query) -> bool:
    """Whether a primary key or the row of a subject leads to the jobs."""
    subjects = query.all("subject")
    return bool(query.one("id") or (subjects and all(":" in subject for subject in subjects)))


def _last(look: Look, *criteria: ColumnElement[bool]) -> Select[int]:
    """The id of the last of the jobs that are looked at, newest first."""
    ids = select(look.job.id).where(*criteria).order_by(look.job.id.desc())
    # It is part of a statement on the same table, of which it is not about the same row.
    return ids.offset(MOST - 1).limit(literal_column("1")).correlate(None)


def among_newest(look: Look, status: JobStatus) -> ColumnElement[bool]:
    """Whether a job is one of those of a status that are looked at: failed, running or blocked."""
    which = _of(look, status)
    if status is JobStatus.BLOCKED:
        return look.job.id.in_(select(look.job.id).where(which).limit(MOST).correlate(None))
    return and_(which, look.job.id >= func.coalesce(_last(look, which).scalar_subquery(), 0))


def _of(look: Look, status: JobStatus) -> ColumnElement[bool]:
    """As the condition of the status's index says it."""
    found = look.job.status == status_literal(status)
    return and_(found, look.job.blocked_by.is_not(None)) if status is JobStatus.BLOCKED else found


def _are_many_blocked(look: Look) -> bool:
    some = (
        select(literal_column("1")).select_from(look.job).where(_of(look, JobStatus.BLOCKED)).limit(MOST + 1).subquery()
    )
    return (look.connection.scalar(select(func.count()).select_from(some)) or 0) > MOST
