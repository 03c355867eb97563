"""One job as a page or a terminal shows it, again and again: all that is short, and what is long only up to a size.

A row may hold anything: times that no clock shows, numbers of a million digits, JSON that is small as it is stored and does not fit into
memory as text. What cannot be read is left out, with its size, and the rest is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ..arguments.storable import load_any
from ..models import ArchivedJob, Job, JobMixin, companions_of
from ..rules.failures import moment_said
from ..sql.chosen import Jobs, reading_of
from ..sql.claims import version_of
from ..sql.steps import job_steps

#: Bytes, as they are stored, of arguments, a result or errors up to which they are read; and of the same as text.
SHOWN = 100_000
_TEXT = 400_000
#: Bytes of arguments up to which they are shown next to the name of a job.
_SHORT = 1_000
_ZERO: sa.ColumnElement[int] = sa.literal_column("0", sa.Integer)

_PLAIN = (
    "id", "status", "task", "queue", "priority", "attempt", "max_attempts", "rescues", "claims", "worker", "schedule_id", "ticks",
    "workflow_id", "inputs", "units", "subject_type", "subject_id", "concurrency_key",
)  # fmt: skip
_TIMES = (
    "created_at", "run_at", "claimed_at", "lease_expires_at", "cancel_requested_at", "finished_at", "purge_at", "expires_at", "deadline_at",
    "tick_at",
)  # fmt: skip
_LONG = ("args", "meta", "result", "errors", "extras")
_FIRST: sa.ColumnElement[Any] = sa.literal_column("timestamptz '0002-01-01 00:00+00'")
_LAST: sa.ColumnElement[Any] = sa.literal_column("timestamptz '9999-01-01 00:00+00'")
#: What an SQLSTATE begins with where the connection is gone or going, and not what is read at fault.
_GONE = ("08", "57P", "58")


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job: its columns by name, in which a value that is too long is None; what its state is called; and the time."""

    job: Any
    reading: str
    now: datetime
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of each value that is there and too long, or cannot be read: its bytes, as it is stored."""


def clamped(time: sa.SQLColumnExpression[Any]) -> sa.ColumnElement[Any]:
    """A time that Python can hold: its first or last time for others, such as infinity."""
    kept = sa.func.least(sa.func.greatest(time, _FIRST), _LAST, type_=sa.DateTime(timezone=True))
    return sa.case((time.is_not(None), kept))


def read_job(
    connection: sa.Connection, id: int, *, where: Sequence[sa.ColumnElement[bool]] = (), job: Jobs = Job
) -> JobSeen | None:
    """Read one job, of its table or of the archive; None if there is none with this id that meets the criteria.

    Of the archive it has `archived_at`, which is None of others, and its log lines, `logs`.
    """
    columns = job.__table__.c
    is_archived = issubclass(job, ArchivedJob)
    long = (*_LONG, "logs") if is_archived else _LONG
    size = (sa.func.coalesce(sa.func.pg_column_size(columns[name]), 0).label(f"{name}_size") for name in long)
    statement = sa.select(
        *(columns[name] for name in _PLAIN),
        *(clamped(columns[name]).label(name) for name in _TIMES),
        version_of(job.__table__).label("version"),
        columns.uniqueness["key"].astext.label("unique_key"),
        columns.uniqueness["scope"].astext.label("unique_scope"),
        columns.duplicate_of.label("duplicate_of"),
        job.progress.label("progress"),
        job.progress_message.label("progress_message"),
        columns.archived_at if is_archived else sa.null().label("archived_at"),
        *size,
        reading_of(job).label("reading"),
        sa.func.now().label("now"),
    ).where(columns.id == id, *where)
    if is_archived:  # the index of each month is searched until one has the job
        statement = statement.order_by(columns.finished_at.desc()).limit(sa.literal_column("1"))
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        return None
    found: dict[str, Any] = {str(name): value for name, value in row.items()}
    sizes = {name: int(found.pop(f"{name}_size")) for name in long}
    reading, now = found.pop("reading"), found.pop("now")
    which = [columns.id == id, *([columns.finished_at == found["finished_at"]] if is_archived else [])]
    values = _long_values(connection, which, columns, long)
    left_out = {name: sizes[name] for name in long if sizes[name] and name not in values}
    seen = SimpleNamespace(**found, **{name: values.get(name) for name in long})
    return JobSeen(seen, reading, now, left_out)


def _long_values(
    connection: sa.Connection, which: Sequence[sa.ColumnElement[bool]], columns: Any, names: Sequence[str]
) -> dict[str, Any]:
    """Those that are there and not too long, by name."""
    short = (
        sa.case((sa.func.pg_column_size(columns[name]) <= SHOWN, sa.cast(columns[name], sa.Text))).label(name)
        for name in names
    )
    # A fence, so that each is made into text once.
    made = sa.select(*short).where(*which).offset(_ZERO).subquery("made").c
    statement = sa.select(*(sa.case((sa.func.octet_length(text) <= _TEXT, text)) for text in made))
    row = next(iter(_rows_if_readable(connection, statement)), ())
    return {name: value for name, text in zip(names, row, strict=False) for value in _loaded(text)}


def read_short_args(connection: sa.Connection, ids: Sequence[int], *, job: Jobs = Job) -> dict[int, Any]:
    """The arguments of these jobs by id, without those that are longer than 1,000 bytes or cannot be read."""
    columns = job.__table__.c
    short = sa.case((sa.func.pg_column_size(columns.args) <= _SHORT, sa.cast(columns.args, sa.Text))).label("args")
    which = columns.id == sa.func.any(sa.literal(list(ids), sa.ARRAY(sa.BigInteger)))
    made = sa.select(columns.id, short).where(which).offset(_ZERO).subquery("made").c
    statement = sa.select(made.id, made.args).where(sa.func.octet_length(made.args) <= _SHORT)
    return {job_id: value for job_id, text in _rows_if_readable(connection, statement) for value in _loaded(text)}


def _rows_if_readable(connection: sa.Connection, statement: sa.Executable) -> Sequence[Any]:
    """The rows of a statement; none if a value does not fit into memory as text, or takes too long to make."""
    try:
        with connection.begin_nested():
            return connection.execute(statement).all()
    except DBAPIError as error:
        state = str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None) or "")
        if error.connection_invalidated or not state or state.startswith(_GONE):
            raise
        return ()


def _loaded(text: str | None) -> list[Any]:
    """The value of this JSON; nothing if it is missing or cannot be read."""
    with suppress(ValueError, RecursionError):
        return [] if text is None else [load_any(text)]
    return []


class StepSeen(NamedTuple):
    """A recorded step, with the columns of `job_steps`. A result of more than 1,000 bytes is left out."""

    name: str
    kind: str
    revision: int
    ended_at: datetime
    took: float | None
    orphaned: bool
    size: int | None
    result: Any


def read_steps(connection: sa.Connection, id: int, *, job: Jobs = Job) -> list[StepSeen]:
    """The recorded steps of a job, of its table or of the archive, in the order in which they ended."""
    if issubclass(job, ArchivedJob):
        kept = sa.select(sa.cast(job.steps, sa.Text)).where(job.id == id).order_by(job.finished_at.desc()).limit(1)
        found = next(iter(_loaded(connection.scalars(kept).first())), None)
        recorded: list[Any] = found if isinstance(found, list) else []
        seen = list[StepSeen]()
        for step in recorded:
            with suppress(TypeError, KeyError):  # a value that was written by hand
                if (at := moment_said(step["ended_at"])) is not None:
                    seen.append(StepSeen._make(step[name] for name in StepSeen._fields)._replace(ended_at=at))
        return seen
    steps = job_steps(id, most=_SHORT, job=job).subquery("steps")
    columns = [sa.cast(column, sa.Text) if column.name == "result" else column for column in steps.c]
    rows = _rows_if_readable(connection, sa.select(*columns).order_by(steps.c.ended_at, steps.c.name))
    return [StepSeen._make([*row[:-1], next(iter(_loaded(row[-1])), None)]) for row in rows]


class LogLine(NamedTuple):
    """A kept log line of a job."""

    attempt: int
    at: datetime
    level: str
    message: str


def archived_lines(job: Any) -> list[LogLine]:
    """The log lines of an archived job, without values that were written by hand."""
    found = list[LogLine]()
    for line in job.logs if isinstance(job.logs, list) else ():
        with suppress(TypeError, ValueError, OverflowError, OSError):
            seconds, level, message = line
            found.append(LogLine(job.attempt, datetime.fromtimestamp(seconds, UTC), str(level), str(message)))
    return found


def schedule_said(connection: sa.Connection, id: int | None, *, job: type[JobMixin] = Job) -> str:
    """The name of the schedule with this id, or that it was removed; "" without an id."""
    if id is None:
        return ""
    schedule = companions_of(job).schedule
    name = connection.scalar(sa.select(schedule.name).where(schedule.id == id))
    return f"number {id}, which was removed" if name is None else name
