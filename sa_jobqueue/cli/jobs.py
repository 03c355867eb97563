"""Looking at jobs: `list`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from ..errors import ConfigurationError
from ..models import ArchivedJob, Job, Progress
from ..rules.failures import error_text
from ..rules.words import age
from ..sql.chosen import Jobs, error_type, reading_of
from ..sql.readings.depths import MOST_GROUPS, NEWEST_FAILED, extent_of_errors, group_errors
from ..util.log import one_line
from ..util.urls import mask_passwords, masked
from .config import Config, Json
from .filters import Filters
from .output import Column, last_part, note, print_json, print_table, watch_table
from .place import open_engine, transaction

STYLES = {"failed": "red", "cancelled": "dim", "running": "cyan", "retrying": "yellow", "completed": "green"}

Line = tuple[object, ...]


#: Seconds between two queries with --watch.
_PAUSE = 2.0

_COLUMNS = (
    Column("id", "right"),
    Column("status"),
    Column("queue", wide=True),
    Column("task", wide=True, least=12, shortened=last_part),
    Column("attempt", "right"),
    Column("age", "right", optional=True),
    Column("when"),
    Column("error", wide=True, least=20),
)


def list_jobs(
    config: Config,
    filters: Filters,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1_000_000_000, help="At most this many jobs.")
    ] = 50,
    archived: Annotated[
        bool, typer.Option("--archived", help="List jobs of the archive: see the option archive=True of a task.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the list again every 2 seconds, until Ctrl-C; as many jobs as fit.")
    ] = False,
    json: Json = False,
) -> None:
    """List jobs, the newest first.

    sa-jobqueue list --status failed --newer-than 2h
    sa-jobqueue list --queue mail --status due --json
    sa-jobqueue list --subject Order:7
    sa-jobqueue list --archived --task shop.send_receipt
    """
    jobs: Jobs = ArchivedJob if archived else Job
    if watch and json:
        raise ConfigurationError("--watch and --json contradict each other: give one of them")
    engine = open_engine(config)
    with transaction(config, engine) as connection:
        filters.check_workers(connection)
        rows = newest_jobs(connection, filters, limit + 1, job=jobs)
    shown = rows[:limit]
    if watch:

        def look(fitting: int) -> tuple[list[Line], list[str]]:
            with engine.begin() as connection:
                found = newest_jobs(connection, filters, min(limit, fitting), job=jobs)
            return list(map(job_line, found)), _styles(found)

        watch_table(_COLUMNS, look, every=_PAUSE)
    elif json:
        print_json([_as_json(row) for row in shown])
    elif shown:
        print_table(_COLUMNS, map(job_line, shown), styles=_styles(shown))
    else:
        note("no such jobs")
    if len(rows) > limit and not watch:
        note(f"the newest {limit}; --limit N shows more")


def newest_jobs(connection: sa.Connection, filters: Filters, limit: int, *, job: Jobs = Job) -> Sequence[Any]:
    """The newest jobs; the errors of a job that completed in the end are not shown."""
    trouble = error_type(job)
    message = sa.case((trouble.is_not(None), job.errors[-1]["message"].astext))
    statement = (
        sa.select(
            job.id, job.status, reading_of(job).label("reading"), job.queue, job.task, job.priority, job.attempt, job.max_attempts, job.rescues,
            job.created_at, job.run_at, job.claimed_at, job.finished_at, job.cancel_requested_at, job.worker, job.subject_type, job.subject_id,
            trouble.label("error_type"), message.label("error_message"), sa.func.now().label("now"),
        )
        .where(*filters.criteria(job=job))
        .order_by(job.id.desc())
        .limit(limit)
    )  # fmt: skip
    return connection.execute(statement).mappings().all()


def _styles(rows: Sequence[Any]) -> list[str]:
    return [STYLES.get(row.reading, "") for row in rows]


def _as_json(row: Any) -> dict[str, Any]:
    job = {name: value for name, value in row.items() if name != "now"}
    return job | {name: masked(job[name]) for name in ("error_type", "error_message")}


def job_line(row: Any) -> Line:
    """A job as a line of the list."""
    error = ""
    if row.error_type is not None:  # its class without the module, and its first line, so that both fit into one line
        first = next(iter((row.error_message or "").strip().splitlines()), "")
        error = one_line(mask_passwords(error_text(row.error_type.rpartition(".")[2], first)))
    attempt = f"{row.attempt}/{row.max_attempts}"
    return row.id, row.reading, row.queue, row.task, attempt, since(row.created_at, row.now), _when(row), error


def _when(row: Any) -> str:
    """When it is due, since when it runs, or when it ended."""
    if row.finished_at is not None:
        return f"{since(row.finished_at, row.now)} ago"
    if row.status == "running":
        asked = ", to cancel" if row.cancel_requested_at is not None else ""
        return f"for {since(row.claimed_at, row.now)}{asked}"
    return f"{'in' if row.run_at > row.now else 'due'} {since(row.run_at, row.now)}"


def since(time: datetime | None, now: datetime, *, short: bool = True) -> str:
    return "" if time is None else age((now - time).total_seconds(), short=short)


# ---- A job of the archive, as `show` needs it: found by its number, with its log lines and its progress.


class LogLine(NamedTuple):
    """A line as `job_logs` returns it."""

    attempt: int
    at: datetime
    level: str
    message: str


class Said(NamedTuple):
    """How far a handler said that it is, and when; None: it is not known any more."""

    fraction: float
    message: str | None
    written_at: datetime | None


def find_archived(session: Session, id: int) -> Any:
    """The job, what it is called, and the database's time; None if the archive has no such job."""
    found = sa.select(ArchivedJob, reading_of(ArchivedJob), sa.func.now()).where(ArchivedJob.id == id)
    # A number may be there twice, as after a restore.
    return session.execute(found.order_by(ArchivedJob.finished_at.desc()).limit(1)).one_or_none()


def lines_of(job: ArchivedJob) -> Sequence[LogLine]:
    """The log lines of its last attempt."""
    return [
        LogLine(job.attempt, datetime.fromtimestamp(seconds, UTC), level, message)
        for seconds, level, message in job.logs or ()
    ]


def said_of(job: Job | ArchivedJob, progress: Progress | None) -> Said | None:
    """How far it was. `progress`: what the table of progress has of a job that is not in the archive."""
    if isinstance(job, ArchivedJob):
        return None if job.progress is None else Said(job.progress, job.progress_message, None)
    return None if progress is None else Said(progress.fraction, progress.message, progress.written_at)


# ---- What goes wrong: `errors`.

_ERROR_COLUMNS = (
    Column("jobs", "right"),
    Column("task", wide=True, least=12, shortened=last_part),
    Column("first"),
    Column("last"),
    Column("error", wide=True, least=20),
)


def errors(
    config: Config,
    filters: Filters,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="At most this many groups.")
    ] = MOST_GROUPS,
    json: Json = False,
) -> None:
    """Group failed jobs by task, class of error and first line of the message, the largest groups first.

    The newest 10,000 failed jobs that meet the filters are looked at, as on the dashboard.

    sa-jobqueue errors --finished-since 2h
    sa-jobqueue retry --task shop.send_receipt --error ConnectTimeout --finished-since 2h --spread 10m
    """
    where = filters.criteria()
    with transaction(config) as connection:
        filters.check_workers(connection)
        now = connection.scalar(sa.select(sa.func.now()))
        rows: Any = connection.execute(group_errors(*where, most=limit)).all()
        of = connection.execute(extent_of_errors(*where)).one().jobs
    if json:
        names = ("task", "error", "line", "jobs", "first", "last")
        print_json([{**{name: getattr(row, name) for name in names}, "line": mask_passwords(row.line)} for row in rows])
    elif rows:
        print_table(_ERROR_COLUMNS, [_line(row, now) for row in rows])
    else:
        note("no such failed jobs")
    if rows and rows[0].groups > len(rows):
        note(f"{len(rows)} of {rows[0].groups:,} groups; --limit N shows more")
    if of >= NEWEST_FAILED:
        note(f"of the newest {of:,} failed jobs that meet the filters; there may be more")


def _line(row: Any, now: Any) -> tuple[object, ...]:
    error = one_line(mask_passwords(error_text(row.error.rpartition(".")[2], row.line)))
    return row.jobs, row.task, f"{since(row.first, now)} ago", f"{since(row.last, now)} ago", error
