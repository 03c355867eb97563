"""Failed jobs that have failed alike: of one task, by one class of error, with the same first line.

Only the newest of them are read, so a page shows how many there are among these; and what a button does reaches the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import CTE, ColumnElement, Integer, Text, cast, func, literal, literal_column, select, true

from ..health.one_job import clamped
from ..lifecycle import JobStatus
from ..models import status_literal
from ..statements import prune_jobs, retry_jobs
from .job_deeds import WAITS, deed_of_jobs
from .look import Look
from .query import Query
from .reach import among_newest
from .refusals import BadInput

__all__ = ["ERROR_DEEDS", "HOURS", "NEWEST_FAILED", "groups", "of_group"]

#: Failed jobs that are looked at.
NEWEST_FAILED = 10_000
#: Groups that are shown.
_MOST = 50
#: Hours before now whose failures are shown one by one.
HOURS = 24
#: Characters of the first line of a message that count.
_LINE = 200
#: What names a group in an address, and in a form.
_NAMES = ("task", "error", "group")


def _line(last: Any) -> ColumnElement[str]:
    first = func.split_part(func.coalesce(last["message"].astext, ""), literal_column("E'\\n'"), 1)
    return func.left(first, _LINE, type_=Text())


def _sign(line: ColumnElement[str]) -> ColumnElement[str]:
    """A short name of a line, for addresses: a line may hold anything."""
    hashed = func.sha256(func.convert_to(line, literal_column("'UTF8'")))
    return func.left(func.encode(hashed, literal_column("'hex'")), 16, type_=Text())


def _failed(look: Look) -> list[ColumnElement[bool]]:
    """Those that the viewer may see. They are looked for among the newest of all, so that few behind many of others cost no more."""
    failed = look.job.status == status_literal(JobStatus.FAILED)
    return [failed, among_newest(look, JobStatus.FAILED), *mine] if (mine := look.mine()) else [failed]


def _newest(look: Look, most: int) -> CTE:
    """The newest failed jobs, and what they failed with. Of a traceback nothing is kept: it would not fit into memory for sorting."""
    job = look.job
    newest = (
        select(job.id, job.task, clamped(job.finished_at).label("finished_at"), job.errors)
        .where(*_failed(look))
        .order_by(job.id.desc())
        .limit(most)
        .subquery("newest")
    )
    # A fence: what is stored apart is fetched once for each job.
    last = select(newest.c.errors[-1].label("last")).correlate(newest)
    its = last.offset(literal_column("0", Integer)).lateral("its")
    error = func.coalesce(its.c.last["type"].astext, "", type_=Text()).label("error")
    said = select(newest.c.id, newest.c.task, newest.c.finished_at, error, _line(its.c.last).label("line"))
    return said.select_from(newest.join(its, true())).cte("said").prefix_with("MATERIALIZED")


def groups(look: Look, *, newest: int = NEWEST_FAILED, most: int = _MOST) -> tuple[Sequence[Any], int, int, int]:
    """The `most` largest groups of the `newest` jobs; how many there are of them all; of how many jobs; and the lowest id of these."""
    said = _newest(look, newest)
    ago = func.floor(func.extract("epoch", func.now() - said.c.finished_at) / 3_600)
    hours = func.array_agg(cast(ago, Integer)).filter(ago.between(0, HOURS - 1))
    number = func.count()
    statement = (
        select(
            said.c.task,
            said.c.error,
            said.c.line,
            _sign(said.c.line).label("group"),
            number.label("jobs"),
            func.min(said.c.finished_at).label("first"),
            func.max(said.c.finished_at).label("last"),
            hours.label("hours"),
            func.count().over().label("groups"),
        )
        .group_by(said.c.task, said.c.error, said.c.line)
        .order_by(number.desc(), func.max(said.c.id).desc())
        .limit(most)
    )
    rows: Sequence[Any] = look.connection.execute(statement).all()
    extent: Any = look.connection.execute(_extent(look, newest)).one()
    return rows, rows[0].groups if rows else 0, extent.jobs, extent.floor or 0


def _extent(look: Look, most: int) -> Any:
    job = look.job
    ids = select(job.id).where(*_failed(look)).order_by(job.id.desc()).limit(most).subquery("ids")
    return select(func.count().label("jobs"), func.min(ids.c.id).label("floor"))


def of_group(look: Look) -> list[ColumnElement[bool]]:
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
        func.coalesce(last["type"].astext, "", type_=Text()) == literal(query.one("error"), Text),
        _sign(_line(last)) == literal(group, Text),
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
