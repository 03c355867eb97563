"""List jobs, and group failed jobs by their errors: `list` and `errors`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa
import typer

from ..errors import ConfigurationError
from ..models import ArchivedJob, Job
from ..rules.failures import error_text
from ..rules.words import age
from ..sql.chosen import Jobs, error_type, reading_of
from ..sql.readings.depths import MOST_GROUPS, NEWEST_FAILED, extent_of_errors, group_errors, mark_state, newest_marks
from ..util.log import one_line
from ..util.urls import mask_passwords, masked
from .config import Config, Json
from .filters import Filters
from .output import Column, last_part, note, print_json, print_table, watch_table
from .place import open_engine, transaction

STYLES = {"failed": "red", "cancelled": "dim", "running": "cyan", "retrying": "yellow", "completed": "green"}

Line = tuple[object, ...]


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
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1_000_000_000, help="At most N jobs.")
    ] = 50,
    archived: Annotated[
        bool, typer.Option("--archived", help="List archived jobs: see the option archive=True of a task.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show as many jobs as fit, again every 2 seconds, until Ctrl-C.")
    ] = False,
    json: Json = False,
) -> None:
    """List jobs, newest first.

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

        def read(fitting: int) -> tuple[list[Line], list[str]]:
            with engine.begin() as connection:
                newest = newest_jobs(connection, filters, min(limit, fitting), job=jobs)
            return list(map(job_line, newest)), _styles(newest)

        watch_table(_COLUMNS, read, every=2.0)
    elif json:
        print_json([_as_json(row) for row in shown])
    elif shown:
        print_table(_COLUMNS, map(job_line, shown), styles=_styles(shown))
    else:
        note("no such jobs")
    if len(rows) > limit and not watch:
        note(f"the newest {limit}; --limit N shows more")


def newest_jobs(connection: sa.Connection, filters: Filters, limit: int, *, job: Jobs = Job) -> Sequence[Any]:
    """The newest jobs, without errors of jobs that completed in the end."""
    failure = error_type(job)
    message = sa.case((failure.is_not(None), job.errors[-1]["message"].astext))
    statement = (
        sa.select(
            job.id, job.status, reading_of(job).label("reading"), job.queue, job.task, job.priority, job.attempt, job.max_attempts, job.rescues,
            job.created_at, job.run_at, job.claimed_at, job.finished_at, job.cancel_requested_at, job.worker, job.subject_type, job.subject_id,
            failure.label("error_type"), message.label("error_message"), sa.func.now().label("now"),
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


def _error_in_brief(kind: str, message: str) -> str:
    """The class without its module, and the first line of the message, so that both fit into one line."""
    first = next(iter(message.strip().splitlines()), "")
    return one_line(mask_passwords(error_text(kind.rpartition(".")[2], first)))


def job_line(row: Any) -> Line:
    """A job as a line of the list."""
    error = "" if row.error_type is None else _error_in_brief(row.error_type, row.error_message or "")
    attempt = f"{row.attempt}/{row.max_attempts}"
    return row.id, row.reading, row.queue, row.task, attempt, since(row.created_at, row.now), _when(row), error


def _when(row: Any) -> str:
    """When the job is due, since when it runs, or when it ended. Empty for a blocked job that is not due later."""
    if row.finished_at is not None:
        return f"{since(row.finished_at, row.now)} ago"
    if row.status == "running":
        asked = ", to cancel" if row.cancel_requested_at is not None else ""
        return f"for {since(row.claimed_at, row.now)}{asked}"
    if row.run_at > row.now:
        return f"in {since(row.run_at, row.now)}"
    return "" if row.status == "blocked" else f"due {since(row.run_at, row.now)}"


def since(time: datetime | None, now: datetime, *, short: bool = True) -> str:
    return "" if time is None else age((now - time).total_seconds(), short=short)


# ---- Failed jobs by their errors: `errors`.

_ERROR_COLUMNS = (
    Column("jobs", "right"),
    Column("task", wide=True, least=12, shortened=last_part),
    Column("first"),
    Column("last"),
    Column("mark", optional=True),
    Column("error", wide=True, least=20),
)


def errors(
    config: Config,
    filters: Filters,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="At most N groups.")
    ] = MOST_GROUPS,
    json: Json = False,
) -> None:
    """Group failed jobs by task, error class and first line of the message, largest groups first.

    It reads the newest 10,000 failed jobs that meet the filters, as the dashboard does. Numbers, ids and quoted text do not tell
    groups apart. The mark of a group is what operators made of it in the dashboard: resolved, muted, or failed again since.

    sa-jobqueue errors --finished-since 2h
    sa-jobqueue retry --task shop.send_receipt --error ConnectTimeout --finished-since 2h --spread 10m
    """
    where = filters.criteria()
    with transaction(config) as connection:
        filters.check_workers(connection)
        now: Any = connection.scalar(sa.select(sa.func.now()))
        rows: Any = connection.execute(group_errors(*where, most=limit)).all()
        failed = connection.execute(extent_of_errors(*where)).one().jobs
        newest = connection.execute(newest_marks()).mappings().all()
    marks = {(mark["task"], mark["error"], mark["group"]): mark for mark in reversed(newest)}
    states = [mark_state(marks.get((row.task, row.error, row.group)), row.last, now)[0] for row in rows]
    if json:
        names = ("task", "error", "line", "jobs", "first", "last")
        print_json(
            [
                {**{name: getattr(row, name) for name in names}, "line": mask_passwords(row.line), "mark": state}
                for row, state in zip(rows, states, strict=True)
            ]
        )
    elif rows:
        lines = [
            (row.jobs, row.task, f"{since(row.first, now)} ago", f"{since(row.last, now)} ago", state, _error_in_brief(row.error, row.line))
            for row, state in zip(rows, states, strict=True)
        ]  # fmt: skip
        print_table(_ERROR_COLUMNS, lines)
    else:
        note("no such failed jobs")
    if rows and rows[0].groups > len(rows):
        note(f"{len(rows)} of {rows[0].groups:,} groups; --limit N shows more")
    if failed >= NEWEST_FAILED:
        note(f"among the newest {failed:,} failed jobs that meet the filters; there may be more")
