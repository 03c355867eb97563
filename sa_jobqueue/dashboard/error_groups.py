"""Failed jobs that have failed alike: of one task, by one class of error, with the same first line.

Only the newest of them are read, so a page shows how many there are among these; and what a button does reaches the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ..lifecycle import JobStatus
from ..models import status_literal
from ..statements import prune_jobs, retry_jobs
from ..statements.alike import HOURS, MOST_GROUPS, NEWEST_FAILED, extent_of_errors, group_errors, line_of, sign_of
from .job_deeds import WAITS, deed_of_jobs
from .look import Look
from .query import Query
from .reach import among_newest
from .refusals import BadInput

__all__ = ["ERROR_DEEDS", "HOURS", "NEWEST_FAILED", "groups", "of_group"]

#: What names a group in an address, and in a form.
_NAMES = ("task", "error", "group")


def _where(look: Look) -> list[sa.ColumnElement[bool]]:
    """Those that the viewer may see. They are looked for among the newest of all, so that few behind many of others cost no more."""
    return [among_newest(look, JobStatus.FAILED), *mine] if (mine := look.mine()) else []


def groups(look: Look, *, newest: int = NEWEST_FAILED, most: int = MOST_GROUPS) -> tuple[Sequence[Any], int, int, int]:
    """The `most` largest groups of the `newest` jobs; how many there are of them all; of how many jobs; and the lowest id of these."""
    where = _where(look)
    statement = group_errors(*where, newest=newest, most=most, job=look.job)
    rows: Sequence[Any] = look.connection.execute(statement).all()
    extent: Any = look.connection.execute(extent_of_errors(*where, newest=newest, job=look.job)).one()
    return rows, rows[0].groups if rows else 0, extent.jobs, extent.floor or 0


def of_group(look: Look) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs of one group, as an address or a form names it. Raises BadInput where it names none."""
    query, job = look.query, look.job
    if not (task := query.one("task")) or not (group := query.one("group")):
        raise BadInput("the form", "no group", "a task, and a group of its errors")
    last = job.errors[-1]
    return [
        # First what an index finds; the floor is what keeps to those that the page has counted.
        job.status == status_literal(JobStatus.FAILED),
        job.id >= (query.id("floor") or 1),
        job.task == task,
        sa.func.coalesce(last["type"].astext, "", type_=sa.Text()) == sa.literal(query.one("error"), sa.Text),
        sign_of(line_of(last)) == sa.literal(group, sa.Text),
        *look.mine(),
    ]


def named(query: Query) -> Query:
    """What of an address names the group."""
    return query.only(*_NAMES, "floor")


#: By name. A failed job can be run again, or be deleted.
ERROR_DEEDS = {
    deed.name: deed
    for deed in (
        deed_of_jobs("retry_group", "retry", of_group, retry_jobs, target=_NAMES, apart=WAITS, locked="skip"),
        deed_of_jobs("delete_group", "delete", of_group, prune_jobs, target=_NAMES, careful=True, limit=1_000),
    )
}  # fmt: skip
