"""The filter of jobs in an address or a form, and its criteria, for pages and for actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import ColumnClause, TextClause

from ..arguments.subjects import Subject
from ..models import ArchivedJob, Job, JobMixin, status_literal
from ..rules.lifecycle import JobStatus
from ..sql.archived import archive_parts
from ..sql.chosen import Status, criteria_of, queued_in_order
from ..sql.limits.state import is_keyless, is_later, is_ready
from ..sql.parts import table_of
from ..sql.readings.depths import CAP, capped
from ..util.schema import schema_on
from ..util.urls import without_secrets
from .query import Query, as_id
from .refusals import BadInput
from .request import ONE, PageContext
from .shared import Kept

#: The names of a filter's values. All of them narrow what is shown and what is changed.
FILTERS = (
    "id", "status", "queue", "task", "tag", "subject", "key", "error", "args", "workflow", "worker", "older_than", "newer_than", "from",
    "not_queue", "not_task", "not_error", "attempts", "took", "created_after", "created_before", "ended_after", "ended_before",
)  # fmt: skip

_WORDS = {"subject": "about", "from": "id from", "attempts": "attempts at least", "took": "ran at least"}
_ATTEMPTS = range(1, 2**15)


def chosen(context: PageContext) -> list[sa.ColumnElement[bool]]:
    """The criteria of the filter, and of the jobs that the viewer may see. Raises BadInput."""
    query, job = context.query, context.job
    found: list[sa.ColumnElement[bool]] = []
    if ids := query.ids("id"):
        # One parameter, because a statement takes 65,535 at most.
        found.append(job.id == sa.func.any(sa.literal(ids, sa.ARRAY(sa.BigInteger))))
    if since := query.id("from"):
        found.append(job.id >= since)
    if workflow := query.id("workflow"):
        found.append(job.workflow_id == workflow)
    named: dict[str, Any] = {name: query.all(name) for name in ("queue", "task", "tag", "key", "error", "worker")}
    found += criteria_of(
        **named,
        status=list(map(_status, query.all("status"))),
        subject=list(map(_subject, query.all("subject"))),
        args=_args(context),
        older_than=query.duration("older_than"),
        newer_than=query.duration("newer_than"),
        since=query.moment("created_after"),
        finished_since=query.moment("ended_after"),
        finished_before=query.moment("ended_before"),
        job=job,
    )
    for name in ("queue", "task", "error"):
        if unwanted := query.all(f"not_{name}"):
            has: dict[str, Any] = {name: unwanted}
            found.append(sa.and_(*criteria_of(**has, job=job)).is_not(sa.true()))
    if before := query.moment("created_before"):
        found.append(job.created_at < before)
    if attempts := query.number("attempts", 0, _ATTEMPTS):
        found.append(job.attempt >= attempts)
    if took := query.duration("took"):
        # Not a difference of the times, because it fails if one of them is infinite.
        found.append(job.claimed_at <= sa.func.coalesce(job.finished_at, sa.func.now()) - took)
    return [*found, *context.mine()]


def chips(query: Query) -> list[tuple[str, str, Query]]:
    """The values of the filter but the status, each in words, with the query without it."""
    return [
        (
            _WORDS.get(name, name.replace("_", " ")),
            value,
            query.but(before=(), due=(), **{name: [*values[:at], *values[at + 1 :]]}),
        )
        for name in FILTERS
        if name != "status"
        for values in [query.all(name)]
        for at, value in enumerate(values)
    ]


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
    """The arguments that a job must have. A viewer who may not see arguments must not find them by guessing, either."""
    given = context.query.one("args")
    if given and context.options.format_args is not None and not context.access.may("search_arguments"):
        raise BadInput("args", given, "nothing: arguments are masked here, and you may not search them")
    found = context.query.json_object("args")
    if found != without_secrets(found):
        raise BadInput("args", given, "values of arguments that are neither secret nor sensitive")
    return found


# ---- The jobs that a page searches: as many as take milliseconds, in a table of any size.

#: The ids that are searched if no index finds the jobs.
RANGE = 100_000
#: The jobs that are searched if an index finds them.
MOST = CAP - 1

_IN_ORDER = (JobStatus.FAILED, JobStatus.RUNNING)
"""Statuses with an index on the ids."""
_REST = (JobStatus.COMPLETED, JobStatus.CANCELLED)
"""Statuses without an index."""
_FALSE: sa.ColumnElement[bool] = sa.literal_column("false")
_QUEUED = frozenset((Status.QUEUED, Status.DUE, Status.SCHEDULED, Status.RETRYING))
#: The jobs of each queue and key that are searched by other columns than queue, key and time, unless all are in one queue.
_OF_EACH_KEY = 500


def highest_id(context: PageContext) -> int:
    """The id of the newest job; 0 without jobs."""
    return context.connection.scalar(sa.select(context.job.id).order_by(context.job.id.desc()).limit(ONE)) or 0


def reach(context: PageContext, above: int) -> tuple[int, list[sa.ColumnElement[bool]]]:
    """The lowest searched id of jobs with ids below `above`, 0 if all are searched; and the criteria of the searched jobs."""
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
    # Ids begin at 1, unless they were inserted by hand.
    return (lowest, [*within, job.id >= lowest]) if lowest > 1 else (0, within)


def _floor(context: PageContext, above: int) -> int:
    """The lowest id of a range of ids with at least some jobs, even if ids are missing; 0: it has all jobs."""
    last: int | None = context.connection.scalar(_last(context, context.job.id < above))
    return 0 if last is None else max(min(last, above - RANGE), 0)


def tabs(context: PageContext, highest: int) -> list[tuple[str, str]]:
    """Each status with the number of searched jobs that have it, up to a cap."""
    counts = dict.fromkeys(JobStatus, (0, False))
    for statement in _counts(replace(context, query=context.query.but(status=())), highest):
        rows: Any = context.connection.execute(statement)
        for status, number, is_cut in rows:
            before, was_cut = counts[JobStatus(status)]
            counts[JobStatus(status)] = before + number, was_cut or is_cut
    return [(status.value, _shown(number, is_cut)) for status, (number, is_cut) in counts.items()]


def _shown(number: int, is_cut: bool) -> str:
    if number >= CAP or not is_cut:
        return capped(number)
    return f"{number:,}+" if number else "–"


def _counts(context: PageContext, highest: int) -> list[Any]:
    """Statements that count by status: the status, a number, and whether some jobs were not searched."""
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
        some = sa.select(ONE).select_from(job).where(*criteria, which).limit(CAP).subquery(f"of_{status}")
        parts.append(sa.select(status_literal(status), sa.func.count(), is_cut).select_from(some))
    return [*parts, *_queued(context, criteria)]


def _split(statuses: Any, wanted: Sequence[JobStatus], is_cut: sa.ColumnElement[bool]) -> Any:
    """Count the rows with each of the wanted statuses."""
    some = statuses.subquery("some")
    numbers = (sa.func.count().filter(some.c.status == status_literal(status)).label(status.value) for status in wanted)
    counted = sa.select(*numbers, is_cut.label("is_cut")).select_from(some).cte("counted")
    return sa.union_all(
        *(sa.select(status_literal(status), counted.c[status.value], counted.c.is_cut) for status in wanted)
    )


def _queued(context: PageContext, criteria: list[sa.ColumnElement[bool]]) -> list[Any]:
    """Statements that count the first jobs of each index of queued jobs, in the queues of the filter."""
    table, names, statements = table_of(context.job), _queues(context), []
    for kind in (is_keyless, is_ready, is_later):
        in_queues = [] if names is None else [table.c.queue.in_(names)]
        fits = sa.case((sa.and_(sa.true(), *criteria), sa.true()), else_=False).label("fits")
        some = sa.select(fits).where(kind(table), *in_queues).limit(CAP).subquery("some")
        number, is_cut = sa.func.count().filter(some.c.fits), sa.func.count() >= CAP
        statements.append(sa.select(status_literal(JobStatus.QUEUED), number, is_cut).select_from(some))
    return statements


def _is_cut(context: PageContext, status: JobStatus) -> sa.ColumnElement[bool]:
    """Whether more jobs have this status than are searched."""
    which = _of(context, status)
    if status is JobStatus.BLOCKED:
        return sa.select(context.job.id).where(which).offset(MOST - 1).limit(ONE).correlate(None).exists()
    return _last(context, which).exists()


def _queues(context: PageContext) -> list[str] | None:
    """The queues of the filter that the viewer may see; None: all."""
    asked = context.query.all("queue")
    if context.queues is None:
        return asked or None
    return sorted(context.queues.intersection(asked) if asked else context.queues)


# ---- Queued jobs, in the order in which they are due.


class Due(NamedTuple):
    """A page of queued jobs, oldest due first."""

    ids: Sequence[int]
    after: str | None
    """The start of the next page; None: there is none."""
    until: str | None
    """The time until which due jobs were searched, if the page is not full and there are more jobs."""
    is_cut: bool
    """Whether a queue has more keys than were searched."""


def is_by_due(query: Query) -> bool:
    """Whether the filter asks for queued jobs only, which are shown in the order in which they are due."""
    statuses = query.all("status")
    return len(statuses) == 1 and statuses[0] in _QUEUED and not _is_about_few(query) and not query.one("workflow")


def due_page(context: PageContext, most: int) -> Due:
    """The next `most` queued jobs of the filter, after the previous page. Raises BadInput."""
    query, job, names = context.query, context.job, _queues(context)
    after, number = query.one("due").rpartition(",")[::2]
    narrowing = [name for name in FILTERS if name not in ("queue", "key", "status") and query.one(name)]
    status = Status(query.one("status"))
    each = most + 1
    if narrowing or status is Status.RETRYING or context.access.where is not None:
        each = MOST if names is not None and len(names) == 1 else _OF_EACH_KEY
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
    """Whether an id or a subject finds the jobs."""
    subjects = query.all("subject")
    return bool(query.one("id") or (subjects and all(":" in subject for subject in subjects)))


def _last(context: PageContext, *criteria: sa.ColumnElement[bool]) -> sa.Select[int]:
    """The id of the last searched job, newest first."""
    ids = sa.select(context.job.id).where(*criteria).order_by(context.job.id.desc())
    # Not correlated, because the outer statement reads the same table.
    return ids.offset(MOST - 1).limit(ONE).correlate(None)


def among_newest(context: PageContext, status: JobStatus) -> sa.ColumnElement[bool]:
    """Whether a job is among the searched jobs of a status: failed, running or blocked."""
    which = _of(context, status)
    if status is JobStatus.BLOCKED:
        return context.job.id.in_(sa.select(context.job.id).where(which).limit(MOST).correlate(None))
    return sa.and_(which, context.job.id >= sa.func.coalesce(_last(context, which).scalar_subquery(), 0))


def _of(context: PageContext, status: JobStatus) -> sa.ColumnElement[bool]:
    """The condition that finds the jobs of a status by an index.

    No single index has the blocked jobs: those of workflows are in `job`, and suspended jobs in `wait`. For blocked jobs the condition lists
    ids: all ids, or at least `CAP` of them.
    """
    job, found = context.job, context.job.status == status_literal(status)
    if status is not JobStatus.BLOCKED:
        return found
    wait = context.tables.wait
    conditions = (
        (wait.signal > sa.literal_column("''", sa.Text)),
        wait.due_at.is_not(None),
        sa.and_(wait.signal.is_(None), wait.due_at.is_(None)),
    )
    # A part for each index: first that of jobs in workflows, then three of suspended jobs.
    parts = [sa.select(job.id).where(found, job.blocked_by.is_not(None))]
    parts += [sa.select(wait.job_id).where(wait.resumed_at.is_(None), condition) for condition in conditions]
    ids = sa.union_all(*(sa.select(part.limit(CAP).correlate(None).subquery().c[0]) for part in parts))
    return sa.and_(found, job.id == sa.func.any(sa.func.array(ids.scalar_subquery(), type_=sa.ARRAY(sa.BigInteger))))


def _are_many_blocked(context: PageContext) -> bool:
    blocked = sa.select(ONE).select_from(context.job).where(_of(context, JobStatus.BLOCKED))
    return context.count(blocked.limit(MOST + 1)) > MOST


# ---- The archive, with the filter and the access of the jobs.


class Archive(NamedTuple):
    """An archive."""

    parts: Sequence[str]
    """Its months, as "2026-11", newest first; or names of partitions that are not the queue's."""
    has_jobs: bool


#: Workers make months weeks before they contain jobs.
_KEPT: Kept[Archive] = Kept(60.0)


def archive_of(context: PageContext) -> Archive:
    """The archive of the jobs; without months if nothing is archived, or the role may not read it."""
    connection, table = context.connection, table_of(context.job)
    schema = schema_on(connection, table)

    def read() -> Archive:
        parts = connection.scalars(archive_parts(schema=schema, table=table.name)).all()
        some: sa.Select[Any] = sa.select(ONE).select_from(context.tables.archived_job).limit(ONE)
        return Archive(parts, bool(parts) and connection.scalar(some) is not None)

    return _KEPT.get(connection, (schema, table.name), read)


def seen_in_archive(context: PageContext) -> PageContext | None:
    """The context with the archive instead of the jobs. None if there is no archive, or the viewer's condition cannot be applied to it."""
    if not archive_of(context).parts:
        return None
    archived, where = context.tables.archived_job, context.access.where
    if where is not None and (where := of_archive(where, context.job, archived)) is None:
        return None
    # The archive's class has the columns of a class of jobs.
    options = replace(context.options, job=cast(type[JobMixin], archived))
    return replace(context, access=replace(context.access, where=where), options=options)


def has_archive(context: PageContext) -> bool:
    """Whether the viewer may find something in the archive."""
    return archive_of(context).has_jobs and seen_in_archive(context) is not None


# ---- The condition of a viewer.


def of_archive(
    condition: sa.ColumnElement[bool], job: type[JobMixin], archived: type[ArchivedJob]
) -> sa.ColumnElement[bool] | None:
    """Translate a condition on jobs into a condition on the archive. None: it cannot be translated.

    A column of the application's own is in `columns`, as JSON. Conditions that contain SQL text, or a query on the jobs, are not
    translated.
    """
    table = table_of(job)
    # A boolean attribute is a condition, too.
    condition = getattr(condition, "__clause_element__", lambda: condition)()
    columns: dict[str, Any] = {}
    for part in visitors.iterate(condition):
        if isinstance(part, sa.Column):
            if _is_of(part, table):
                column = _archived_column(table.c[part.key], archived)
                if column is None:
                    return None
                columns[part.key] = column
        elif (
            isinstance(part, TextClause)
            or (isinstance(part, sa.Table) and part.fullname == table.fullname)
            or (isinstance(part, ColumnClause) and part.table is None and not part.name.isdecimal())
        ):
            return None

    def replaced(part: Any, **_: Any) -> Any:
        return columns[part.key] if isinstance(part, sa.Column) and _is_of(part, table) else None

    traverse: Any = visitors.replacement_traverse
    found: sa.ColumnElement[bool] = traverse(condition, {}, replaced)
    # Another table, such as an alias of the jobs' table, would be joined to the archive without a condition.
    tables = sa.select(ONE).where(found).get_final_froms()
    return found if all(each is table_of(archived) for each in tables) else None


def _is_of(column: sa.Column[Any], table: sa.Table) -> bool:
    return isinstance(column.table, sa.Table) and column.table.fullname == table.fullname


def _archived_column(column: sa.Column[Any], archived: type[ArchivedJob]) -> Any:
    """The expression for the column's value in the archive; None if there is none."""
    if column.name in table_of(Job).c:
        return table_of(archived).c[column.name]
    own = table_of(archived).c.columns[column.name]
    if isinstance(column.type, sa.JSON):
        return own
    return None if isinstance(column.type, sa.ARRAY) else sa.cast(own.astext, column.type)
