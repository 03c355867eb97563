"""Failed jobs that have failed alike: of one task, by one class of error, with the same first line. For the dashboard and `sa-jobqueue errors`.

Only the newest of them are read, so whoever shows the groups says of how many jobs they are.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ..lifecycle import JobStatus
from ..models import Job, JobMixin, status_literal
from .parts import in_calendar, table_of

__all__ = ["HOURS", "MOST_GROUPS", "NEWEST_FAILED", "extent_of_errors", "group_errors", "line_of", "sign_of"]

#: Failed jobs that are looked at.
NEWEST_FAILED = 10_000
#: Groups that are shown.
MOST_GROUPS = 50
#: Hours before now whose failures are counted one by one.
HOURS = 24
#: Characters of the first line of a message that count.
_LINE = 200


def line_of(last: Any) -> sa.ColumnElement[str]:
    """The first line of the message of an error."""
    first = sa.func.split_part(sa.func.coalesce(last["message"].astext, ""), sa.literal_column("E'\\n'"), 1)
    return sa.func.left(first, _LINE, type_=sa.Text())


def sign_of(line: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """A short name of a line, for addresses: a line may hold anything."""
    hashed = sa.func.sha256(sa.func.convert_to(line, sa.literal_column("'UTF8'")))
    return sa.func.left(sa.func.encode(hashed, sa.literal_column("'hex'")), 16, type_=sa.Text())


def group_errors(
    *where: sa.ColumnElement[bool], newest: int = NEWEST_FAILED, most: int = MOST_GROUPS, job: type[JobMixin] = Job
) -> sa.Executable:
    """A row for each of the `most` largest groups of the `newest` failed jobs that meet the criteria.

    `task`, `error`, `line`; `group`, the line's short name; `jobs`, how many; `first` and `last`, when they ended; `hours`, how many
    hours ago each of the last 24 hours did; and `groups`, how many groups there are of all.
    """
    said = _newest(where, newest, job)
    ago = sa.func.floor(sa.func.extract("epoch", sa.func.now() - said.c.finished_at) / 3_600)
    hours = sa.func.array_agg(sa.cast(ago, sa.Integer)).filter(ago.between(0, HOURS - 1))
    number = sa.func.count()
    return (
        sa.select(
            said.c.task,
            said.c.error,
            said.c.line,
            sign_of(said.c.line).label("group"),
            number.label("jobs"),
            sa.func.min(said.c.finished_at).label("first"),
            sa.func.max(said.c.finished_at).label("last"),
            hours.label("hours"),
            sa.func.count().over().label("groups"),
        )
        .group_by(said.c.task, said.c.error, said.c.line)
        .order_by(number.desc(), sa.func.max(said.c.id).desc())
        .limit(most)
    )


def extent_of_errors(
    *where: sa.ColumnElement[bool], newest: int = NEWEST_FAILED, job: type[JobMixin] = Job
) -> sa.Executable:
    """Of how many `jobs` these groups are, and `floor`, the lowest id of these; NULL without any."""
    ids = sa.select(job.id).where(_failed(job), *where).order_by(job.id.desc()).limit(newest).subquery("ids")
    return sa.select(sa.func.count().label("jobs"), sa.func.min(ids.c.id).label("floor")).select_from(ids)


def _failed(job: type[JobMixin]) -> sa.ColumnElement[bool]:
    return job.status == status_literal(JobStatus.FAILED)


def _newest(where: tuple[sa.ColumnElement[bool], ...], most: int, job: type[JobMixin]) -> sa.CTE:
    """The newest failed jobs, and what they failed with. Of a traceback nothing is kept: it would not fit into memory for sorting."""
    newest = (
        sa.select(job.id, job.task, in_calendar(table_of(job).c.finished_at).label("finished_at"), job.errors)
        .where(_failed(job), *where)
        .order_by(job.id.desc())
        .limit(most)
        .subquery("newest")
    )
    # A fence: what is stored apart is fetched once for each job.
    last = sa.select(newest.c.errors[-1].label("last")).correlate(newest)
    its = last.offset(sa.literal_column("0", sa.Integer)).lateral("its")
    error = sa.func.coalesce(its.c.last["type"].astext, "", type_=sa.Text()).label("error")
    said = sa.select(newest.c.id, newest.c.task, newest.c.finished_at, error, line_of(its.c.last).label("line"))
    return said.select_from(newest.join(its, sa.true())).cte("said").prefix_with("MATERIALIZED")
