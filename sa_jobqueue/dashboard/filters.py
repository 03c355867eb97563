"""The filter of the jobs, as an address or a form says it, and the criteria that it means: for pages and for actions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import ColumnClause, TextClause

from ..arguments.subjects import Subject
from ..models import ArchivedJob, Job, JobMixin, companions_of, status_literal
from ..rules.lifecycle import JobStatus
from ..sql.archived import archive_parts
from ..sql.chosen import Status, criteria_of, queued_in_order
from ..sql.limits.state import is_keyless, is_later, is_ready
from ..sql.parts import table_of
from ..sql.readings.depths import CAP, capped
from ..util.schema import schema_on
from .query import Query, as_id
from .refusals import BadInput
from .request import PageContext
from .shared import Kept

#: The names of a filter's values. All of them narrow what is shown, and what is done.
FILTERS = (
    "id", "status", "queue", "task", "tag", "subject", "key", "error", "args", "workflow", "older_than", "newer_than", "from",
)  # fmt: skip


def chosen(context: PageContext) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs that the viewer asks for, and may see. Raises BadInput."""
    query, job = context.query, context.job
    found: list[sa.ColumnElement[bool]] = []
    if ids := query.ids("id"):
        # One parameter, because a statement takes 65,535 at most.
        found.append(job.id == sa.func.any(sa.literal(ids, sa.ARRAY(sa.BigInteger))))
    if since := query.id("from"):
        found.append(job.id >= since)
    if workflow := query.id("workflow"):
        found.append(job.workflow_id == workflow)
    named: dict[str, Any] = {name: query.all(name) for name in ("queue", "task", "tag", "key", "error")}
    found += criteria_of(
        **named,
        status=[_status(one) for one in query.all("status")],
        subject=[_subject(one) for one in query.all("subject")],
        args=_args(context),
        older_than=query.duration("older_than"),
        newer_than=query.duration("newer_than"),
        job=job,
    )
    return [*found, *context.mine()]


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError as error:
        raise BadInput("status", text, f"one of {', '.join(Status)}") from error


def _subject(text: str) -> str:
    if ":" in text:
        try:
            Subject.parse(text)
        except ValueError as error:
            raise BadInput("subject", text, "a type and the key of a row, as in Order:7, or a type alone") from error
    return text


def _args(context: PageContext) -> dict[str, Any] | None:
    """The arguments that a job must have. A viewer who may not see them must not find them by guessing, either."""
    if not (given := context.query.one("args")):
        return None
    if context.options.format_args is not None and not context.access.may("search_arguments"):
        raise BadInput("args", given, "nothing: arguments are masked here, and you may not search them")
    try:
        found = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise BadInput("args", given, 'a JSON object, as in {"order_id": 7}') from error
    if not isinstance(found, dict):
        raise BadInput("args", given, 'a JSON object, as in {"order_id": 7}')
    return found


# ---- How many jobs a page searches: as many as take milliseconds, however many jobs there are.

#: Ids that are looked at where no index finds the jobs.
RANGE = 100_000
#: Jobs that are looked at of those to which an index leads.
MOST = CAP - 1

_IN_ORDER = (JobStatus.FAILED, JobStatus.RUNNING)
"""An index has the ids of these, each in their order."""
_REST = (JobStatus.COMPLETED, JobStatus.CANCELLED)
"""No index has the ids of these."""
_FALSE: sa.ColumnElement[bool] = sa.literal_column("false")
_QUEUED = frozenset((Status.QUEUED, Status.DUE, Status.SCHEDULED, Status.RETRYING))
#: Jobs that are looked at in each line of queued jobs, if more than their queue, key and time must be looked at, and not all are of one queue.
_OF_LINE = 500


def highest_id(context: PageContext) -> int:
    """The id of the newest job; 0 where there is none."""
    return (
        context.connection.scalar(
            sa.select(context.job.id).order_by(context.job.id.desc()).limit(sa.literal_column("1"))
        )
        or 0
    )


def reach(context: PageContext, above: int) -> tuple[int, list[sa.ColumnElement[bool]]]:
    """The lowest id that is looked at of the jobs with lower ids than `above`, 0 where all are; and as criteria."""
    query, job, found = context.query, context.job, None
    within: list[sa.ColumnElement[bool]] = [job.id < above]
    if _is_about_few(query) or not (any(query.one(name) for name in FILTERS) or context.mine()):
        return 0, within
    if workflow := query.id("workflow"):
        found = job.workflow_id == workflow
    elif len(statuses := query.all("status")) == 1 and statuses[0] in set(JobStatus):
        status = JobStatus(statuses[0])
        if status is JobStatus.BLOCKED and not _are_many_blocked(context):
            return 0, [*within, _of(context, status)]
        if status in _IN_ORDER:
            found = _of(context, status)
    lowest = _floor(context, above) if found is None else context.connection.scalar(_last(context, found, *within)) or 0
    # Ids are from 1 on, unless they were said by hand.
    return (lowest, [*within, job.id >= lowest]) if lowest > 1 else (0, within)


def _floor(context: PageContext, above: int) -> int:
    """The lowest id of a range of ids, which has some jobs at least, also where ids are missing; 0: it has all."""
    last: int | None = context.connection.scalar(_last(context, context.job.id < above))
    return 0 if last is None else max(min(last, above - RANGE), 0)


def tabs(context: PageContext, highest: int) -> list[tuple[str, str]]:
    """Each status, and how many of the jobs that are looked at have it, up to a cap."""
    asked = PageContext(context.connection, context.query.but(status=()), context.access, context.options)
    found = dict.fromkeys(JobStatus, (0, False))
    for part in _counts(asked, highest):
        rows: Any = context.connection.execute(part)
        for status, number, is_cut in rows:
            before, was_cut = found[JobStatus(status)]
            found[JobStatus(status)] = before + number, was_cut or is_cut
    return [(status.value, _said(*one)) for status, one in found.items()]


def _said(number: int, is_cut: bool) -> str:
    if number >= CAP or not is_cut:
        return capped(number)
    return f"{number:,}+" if number else "–"


def _counts(context: PageContext, highest: int) -> list[Any]:
    """Statements that count by status: the status, a number, and whether there are jobs that were not looked at."""
    job, criteria = context.job, chosen(context)
    if _is_about_few(context.query) or context.query.one("workflow"):
        most = len(JobStatus) * CAP
        return [_split(sa.select(job.status).where(*criteria).limit(most), tuple(JobStatus), sa.func.count() >= most)]
    floor = _floor(context, highest + 1)
    newest = sa.select(job.status).where(*criteria, job.id >= floor)
    parts = [_split(newest, _REST, sa.true() if floor > 1 else _FALSE)]
    is_narrow = any(context.query.one(name) for name in FILTERS) or bool(context.mine())
    for status in (JobStatus.BLOCKED, *_IN_ORDER):
        which = among_newest(context, status) if is_narrow else _of(context, status)
        is_cut = _is_cut(context, status) if is_narrow else _FALSE
        some = (
            sa.select(sa.literal_column("1"))
            .select_from(job)
            .where(*criteria, which)
            .limit(CAP)
            .subquery(f"of_{status}")
        )
        parts.append(sa.select(status_literal(status), sa.func.count(), is_cut).select_from(some))
    return [*parts, *_queued(context, criteria)]


def _split(statuses: Any, wanted: Sequence[JobStatus], is_cut: sa.ColumnElement[bool]) -> Any:
    """How many of these are each of the wanted ones."""
    some = statuses.subquery("some")
    numbers = (sa.func.count().filter(some.c.status == status_literal(one)).label(one.value) for one in wanted)
    counted = sa.select(*numbers, is_cut.label("is_cut")).select_from(some).cte("counted")
    return sa.union_all(*(sa.select(status_literal(one), counted.c[one.value], counted.c.is_cut) for one in wanted))


def _queued(context: PageContext, criteria: list[sa.ColumnElement[bool]]) -> list[Any]:
    """Of each index of queued jobs its first ones, of the queues that are asked for."""
    table, names, found = table_of(context.job), _queues(context), []
    for kind in (is_keyless, is_ready, is_later):
        of = [] if names is None else [table.c.queue.in_(names)]
        fits = sa.case((sa.and_(sa.true(), *criteria), sa.true()), else_=False).label("fits")
        some = sa.select(fits).where(kind(table), *of).limit(CAP).subquery("some")
        number, is_cut = sa.func.count().filter(some.c.fits), sa.func.count() >= CAP
        found.append(sa.select(status_literal(JobStatus.QUEUED), number, is_cut).select_from(some))
    return found


def _is_cut(context: PageContext, status: JobStatus) -> sa.ColumnElement[bool]:
    """Whether there are more jobs of this status than are looked at."""
    which = _of(context, status)
    if status is JobStatus.BLOCKED:
        return (
            sa.select(context.job.id)
            .where(which)
            .offset(MOST - 1)
            .limit(sa.literal_column("1"))
            .correlate(None)
            .exists()
        )
    return _last(context, which).exists()


def _queues(context: PageContext) -> list[str] | None:
    """The queues whose jobs are asked for, and may be seen; None: all."""
    asked = context.query.all("queue")
    if context.queues is None:
        return asked or None
    return sorted(context.queues.intersection(asked) if asked else context.queues)


# ---- queued jobs, by the time at which they are due


@dataclass(frozen=True, slots=True)
class Due:
    """A page of queued jobs, oldest due first."""

    ids: Sequence[int]
    after: str | None
    """Where the next page begins; None: there is none."""
    until: str | None
    """Due until when the jobs were looked at, where the page is not full and there are more."""
    is_cut: bool
    """Whether a queue has more keys than were looked at."""


def is_by_due(query: Query) -> bool:
    """Whether queued jobs alone are asked for, which are shown in the order in which they are due."""
    statuses = query.all("status")
    return len(statuses) == 1 and statuses[0] in _QUEUED and not _is_about_few(query) and not query.one("workflow")


def due_page(context: PageContext, most: int) -> Due:
    """The first `most` queued jobs of the filter, behind those of the page before. Raises BadInput."""
    query, job, names = context.query, context.job, _queues(context)
    after, number = query.one("due").rpartition(",")[::2]
    narrowing = [name for name in FILTERS if name not in ("queue", "key", "status") and query.one(name)]
    status = Status(query.one("status"))
    each = most + 1
    if narrowing or status is Status.RETRYING or context.access.where is not None:
        each = MOST if names is not None and len(names) == 1 else _OF_LINE
    times = {Status.DUE: [job.run_at <= sa.func.now()], Status.SCHEDULED: [job.run_at > sa.func.now()]}.get(status, [])
    statement = queued_in_order(
        *chosen(context), queues=names, keys=query.all("key"), times=times, after=(after, as_id("due", number)) if after else None,
        each=each, limit=most + 1, job=job,
    )  # fmt: skip
    rows = context.connection.execute(statement).all()
    found = [row for row in rows if row.fits]
    last = found[most - 1] if len(found) > most else rows[-1] if rows[-1].ends else None
    return Due(
        ids=[row.id for row in found[:most]],
        after=None if last is None else f"{last.due},{last.id}",
        until=None if last is None or len(found) > most else last.due,
        is_cut=rows[-1].cut,
    )


def _is_about_few(query: Query) -> bool:
    """Whether a primary key or the row of a subject leads to the jobs."""
    subjects = query.all("subject")
    return bool(query.one("id") or (subjects and all(":" in subject for subject in subjects)))


def _last(context: PageContext, *criteria: sa.ColumnElement[bool]) -> sa.Select[int]:
    """The id of the last of the jobs that are looked at, newest first."""
    ids = sa.select(context.job.id).where(*criteria).order_by(context.job.id.desc())
    # It is part of a statement on the same table, of which it is not about the same row.
    return ids.offset(MOST - 1).limit(sa.literal_column("1")).correlate(None)


def among_newest(context: PageContext, status: JobStatus) -> sa.ColumnElement[bool]:
    """Whether a job is one of those of a status that are looked at: failed, running or blocked."""
    which = _of(context, status)
    if status is JobStatus.BLOCKED:
        return context.job.id.in_(sa.select(context.job.id).where(which).limit(MOST).correlate(None))
    return sa.and_(which, context.job.id >= sa.func.coalesce(_last(context, which).scalar_subquery(), 0))


def _of(context: PageContext, status: JobStatus) -> sa.ColumnElement[bool]:
    """As the condition of the status's index says it."""
    found = context.job.status == status_literal(status)
    return sa.and_(found, context.job.blocked_by.is_not(None)) if status is JobStatus.BLOCKED else found


def _are_many_blocked(context: PageContext) -> bool:
    some = (
        sa.select(sa.literal_column("1"))
        .select_from(context.job)
        .where(_of(context, JobStatus.BLOCKED))
        .limit(MOST + 1)
        .subquery()
    )
    return (context.connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0) > MOST


# ---- The archive: the same question, with the same access, asked of jobs that are not in their table any more.


@dataclass(frozen=True, slots=True)
class Archive:
    """What is known of an archive."""

    parts: Sequence[str]
    """Its months, as "2026-11", the newest first; or names of partitions that are not the queue's."""
    has_jobs: bool


#: Months are made by workers, weeks before there are jobs in them.
_KEPT: Kept[Archive] = Kept(60.0)


def archive_of(context: PageContext) -> Archive:
    """The archive of the jobs; without months where nothing is archived, or the role may not read it."""
    connection, job = context.connection, context.job
    key = schema_on(connection, table_of(job)), table_of(job).name
    return _KEPT.get(connection, key, lambda: _read(connection, *key, job))


def _read(connection: sa.Connection, schema: str, table: str, job: type[JobMixin]) -> Archive:
    parts = connection.scalars(archive_parts(schema=schema, table=table)).all()
    some: sa.Select[Any] = (
        sa.select(sa.literal_column("1")).select_from(companions_of(job).archived_job).limit(sa.literal_column("1"))
    )
    return Archive(parts, bool(parts) and connection.scalar(some) is not None)


def seen_in_archive(context: PageContext) -> PageContext | None:
    """The context with the archive in place of the jobs. None: there is no archive, or the viewer's condition cannot be asked of it, so nothing is shown."""
    if not archive_of(context).parts:
        return None
    archived, where = context.options.beside.archived_job, context.access.where
    if where is not None and (where := of_archive(where, context.job, archived)) is None:
        return None
    # It reads like a class of jobs.
    options = replace(context.options, job=cast(type[JobMixin], archived))
    return replace(context, access=replace(context.access, where=where), options=options)


def has_archive(context: PageContext) -> bool:
    """Whether the viewer may find something in the archive."""
    return archive_of(context).has_jobs and seen_in_archive(context) is not None


# ---- the condition of a viewer


def of_archive(
    condition: sa.ColumnElement[bool], job: type[JobMixin], archived: type[ArchivedJob]
) -> sa.ColumnElement[bool] | None:
    """The condition on jobs as one on the archive. None: it cannot be said there.

    A column of the application's own is in `columns`, as JSON. A condition with SQL as text, or with a query of its own on the jobs, may
    mean anything, and so means nothing here.
    """
    table = table_of(job)
    # An attribute that is a bool is a condition, too.
    condition = getattr(condition, "__clause_element__", lambda: condition)()
    places: dict[str, Any] = {}
    for one in visitors.iterate(condition):
        if isinstance(one, sa.Column):
            if _is_of(one, table):
                place = _place(table.c[one.key], archived)
                if place is None:
                    return None
                places[one.key] = place
        elif (
            isinstance(one, TextClause)
            or (isinstance(one, sa.Table) and one.fullname == table.fullname)
            or (isinstance(one, ColumnClause) and one.table is None and not one.name.isdecimal())
        ):
            return None

    def placed(one: Any, **_: Any) -> Any:
        return places[one.key] if isinstance(one, sa.Column) and _is_of(one, table) else None

    traverse: Any = visitors.replacement_traverse
    found: sa.ColumnElement[bool] = traverse(condition, {}, placed)
    # Another table, an alias of the jobs' for one, would be joined to the archive, each row to each.
    tables = sa.select(sa.literal_column("1")).where(found).get_final_froms()
    return found if all(one is table_of(archived) for one in tables) else None


def _is_of(column: sa.Column[Any], table: sa.Table) -> bool:
    return isinstance(column.table, sa.Table) and column.table.fullname == table.fullname


def _place(column: sa.Column[Any], archived: type[ArchivedJob]) -> Any:
    """Where the archive has what was in this column."""
    if column.name in table_of(Job).c:
        return table_of(archived).c[column.name]
    own = table_of(archived).c.columns[column.name]
    if isinstance(column.type, sa.JSON):
        return own
    return None if isinstance(column.type, sa.ARRAY) else sa.cast(own.astext, column.type)
