"""Looking at jobs: `list`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa
import typer

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.failures import error_text
from sa_jobqueue.log import one_line
from sa_jobqueue.models import ArchivedJob, Job
from sa_jobqueue.urls import mask_passwords

from .config import Config
from .filters import Filters, Jobs, error_type, reading_of
from .options import Json
from .output import (
    Column,
    age,
    last_part,
    masked,
    note,
    print_json,
    print_table,
    watch_table,
)
from .place import open_engine, transaction

__all__ = ["STYLES", "job_line", "list_jobs", "newest_jobs", "since"]

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
