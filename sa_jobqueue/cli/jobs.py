"""Looking at jobs: `list` and `show`."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, cast

import typer
from sqlalchemy import Connection, and_, case, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.explain import explain_job
from sa_jobqueue.lifecycle import JobStatus
from sa_jobqueue.log import one_line
from sa_jobqueue.models import Job, Progress, Schedule
from sa_jobqueue.reasons import WaitReason
from sa_jobqueue.statements import job_logs
from sa_jobqueue.statements.overview import list_workers
from sa_jobqueue.urls import mask_passwords

from .config import Config
from .filters import ERROR_TYPE, READING, Filters
from .messages import fail
from .options import Json, parse_id
from .output import (
    Column,
    age,
    cleaned,
    duration,
    last_part,
    masked,
    moment,
    moment_said,
    note,
    print_json,
    print_table,
    say,
    watch_table,
)
from .place import open_engine, transaction
from .why import reason_as_json, sentence

__all__ = ["job_line", "list_jobs", "newest_jobs", "show"]

_STYLES = {"failed": "red", "cancelled": "dim", "running": "cyan", "retrying": "yellow", "completed": "green"}

_LEVELS = {"DEBUG": "dim", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}

Line = tuple[object, ...]

#: Log lines that `show` prints unless all are asked for.
_LAST_LINES = 20
#: How far a job is; a row of an earlier claim says nothing.
_PROGRESS = select(Progress).join(Job, and_(Job.id == Progress.job_id, Job.claim_token == Progress.claim_token))

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
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the list again every 2 seconds, until Ctrl-C; as many jobs as fit.")
    ] = False,
    json: Json = False,
) -> None:
    """List jobs, the newest first.

    sa-jobqueue list --status failed --newer-than 2h
    sa-jobqueue list --queue mail --status due --json
    sa-jobqueue list --subject Order:7
    """
    if watch and json:
        raise ConfigurationError("--watch and --json contradict each other: give one of them")
    engine = open_engine(config)
    with transaction(config, engine) as connection:
        rows = newest_jobs(connection, filters, limit + 1)
    shown = rows[:limit]
    if watch:

        def look(fitting: int) -> tuple[list[Line], list[str]]:
            with engine.begin() as connection:
                found = newest_jobs(connection, filters, min(limit, fitting))
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


def newest_jobs(connection: Connection, filters: Filters, limit: int) -> Sequence[Any]:
    """The newest jobs; the errors of a job that completed in the end are not shown."""
    message = case((ERROR_TYPE.is_not(None), Job.errors[-1]["message"].astext))
    statement = (
        select(
            Job.id, Job.status, READING.label("reading"), Job.queue, Job.task, Job.priority, Job.attempt, Job.max_attempts, Job.rescues,
            Job.created_at, Job.run_at, Job.claimed_at, Job.finished_at, Job.cancel_requested_at, Job.worker, Job.subject_type, Job.subject_id,
            ERROR_TYPE.label("error_type"), message.label("error_message"), func.now().label("now"),
        )
        .where(*filters.criteria())
        .order_by(Job.id.desc())
        .limit(limit)
    )  # fmt: skip
    return connection.execute(statement).mappings().all()


def _styles(rows: Sequence[Any]) -> list[str]:
    return [_STYLES.get(row.reading, "") for row in rows]


def _as_json(row: Any) -> dict[str, Any]:
    job = {name: value for name, value in row.items() if name != "now"}
    return job | {name: masked(job[name]) for name in ("error_type", "error_message")}


def job_line(row: Any) -> Line:
    """A job as a line of the list."""
    error = ""
    if row.error_type is not None:  # its class without the module, and its first line, so that both fit into one line
        first = next(iter((row.error_message or "").strip().splitlines()), "")
        error = one_line(mask_passwords(f"{row.error_type.rpartition('.')[2]}: {first}"))
    attempt = f"{row.attempt}/{row.max_attempts}"
    return row.id, row.reading, row.queue, row.task, attempt, _since(row.created_at, row.now), _when(row), error


def _when(row: Any) -> str:
    """When it is due, since when it runs, or when it ended."""
    if row.finished_at is not None:
        return f"{_since(row.finished_at, row.now)} ago"
    if row.status == "running":
        asked = ", to cancel" if row.cancel_requested_at is not None else ""
        return f"for {_since(row.claimed_at, row.now)}{asked}"
    return f"{'in' if row.run_at > row.now else 'due'} {_since(row.run_at, row.now)}"


def _since(time: datetime | None, now: datetime, *, short: bool = True) -> str:
    return "" if time is None else age((now - time).total_seconds(), short=short)


def show(
    config: Config,
    id: Annotated[int, typer.Argument(metavar="ID", parser=parse_id, help="The job's number.")],
    logs: Annotated[bool, typer.Option("--logs", help="All log lines that are kept of it, and nothing else.")] = False,
    json: Json = False,
) -> None:
    """Show one job: why it waits, its arguments, its times, how far it is, every attempt with its error, its last log lines.

    sa-jobqueue show 7 --logs
    """
    with transaction(config) as connection, Session(connection, expire_on_commit=False) as session:
        found = session.execute(select(Job, READING, func.now()).where(Job.id == id)).one_or_none()
        worker = "" if found is None else _name_of_worker(session, found[0].worker)
        schedule = "" if found is None else _name_of_schedule(session, found[0].schedule_id)
        progress = session.scalars(_PROGRESS.where(Job.id == id)).one_or_none()
        lines = session.execute(job_logs(id)).all()
        reasons = () if found is None else _reasons(session, found[0])
    if found is None:
        fail(f"there is no job {id}", 1)
    job, reading, now = found
    durations = _durations(job, now)
    if logs:
        _show_lines(lines, json=json)
        return
    if json:
        columns = {column: getattr(job, column) for column in Job.__table__.columns.keys()}  # noqa: SIM118
        seconds = {f"{name}_seconds": time.total_seconds() for name, time in durations.items()}
        far = {
            "progress": progress and progress.fraction,
            "progress_message": masked(progress and progress.message),
            "progress_at": progress and progress.written_at,
        }
        why = {"waits_for": [reason_as_json(reason, id) for reason in reasons]}
        print_json(columns | far | {"reading": reading} | seconds | why | {"errors": masked(job.errors)})
        return
    _print_head(job, reading, worker, schedule)
    _print_reasons(reasons, now)
    _print_times(job, now)
    for name, time in durations.items():
        say(f"{name:<13} {duration(time.total_seconds())}")
    if progress is not None:
        _print_progress(progress, now)
    _print_value("arguments", job.args)
    if job.meta:
        _print_value("meta", job.meta)
    if job.result is not None:
        _print_value("result", job.result)
    # The application may have written there, too: what is no entry of an attempt is shown as it is.
    errors = cast(object, job.errors)
    for error in cast(list[object], errors) if isinstance(errors, list) else [errors]:
        if isinstance(error, dict):
            _print_error(cast(dict[str, Any], error), now)
        else:
            _print_value("error", masked(error))
    if lines:
        _print_lines(lines[-_LAST_LINES:])
        if len(lines) > _LAST_LINES:
            note(f"the last {_LAST_LINES} of {len(lines)} log lines; --logs shows all")


def _reasons(session: Session, job: Job) -> Sequence[WaitReason]:
    """Why it waits, if it does."""
    return explain_job(session, job.id).reasons if job.status in (JobStatus.QUEUED, JobStatus.BLOCKED) else ()


def _show_lines(lines: Sequence[Any], *, json: bool) -> None:
    """All of them, without the rest."""
    if json:
        print_json([dict(line._mapping) | {"message": mask_passwords(line.message)} for line in lines])  # noqa: SLF001
    elif lines:
        _print_lines(lines)
    else:
        note("no log lines are kept of it: a task keeps them with @task(keep_logs=True)")


def _print_lines(lines: Sequence[Any]) -> None:
    attempt = None
    for line in lines:
        if line.attempt != attempt:
            attempt = line.attempt
            say(f"\nlog of attempt {attempt}", "bold")
        first, *more = cleaned(mask_passwords(line.message), keep="\n\t").split("\n")
        say(f"  {line.at.astimezone():%m-%d %H:%M:%S} {cleaned(line.level):<7} {first}", _LEVELS.get(line.level, ""))
        if more:
            say("\n".join(f"    {one}" for one in more), "dim")


def _durations(job: Job, now: datetime) -> dict[str, timedelta]:
    """How long the job waited, once it was due, for its last attempt, and how long that ran, or has been running."""
    claimed, end = job.claimed_at, job.finished_at or (now if job.status == JobStatus.RUNNING else None)
    if claimed is None or end is None or claimed < job.run_at or end < claimed:
        return {}  # not begun, or what it says of the times is of an earlier attempt
    return {"waited": claimed - job.run_at, "ran": end - claimed}


def _name_of_worker(session: Session, id: str | None) -> str:
    """Its host and process, if it has not left; else its id."""
    if id is None:
        return ""
    found = (row for row in session.execute(list_workers()) if str(row.id) == id)
    if (row := next(found, None)) is None:
        return f"{cleaned(id)}, which has left"
    return f"{cleaned(row.host)}:{row.pid} ({cleaned(id)})"


def _name_of_schedule(session: Session, id: int | None) -> str:
    """The name of the one that made the job; its id, if it was removed."""
    if id is None:
        return ""
    name = session.scalars(select(Schedule.name).where(Schedule.id == id)).one_or_none()
    return f"number {id}, which was removed" if name is None else cleaned(name)


def _print_head(job: Job, reading: str, worker: str, schedule: str) -> None:
    say(f"job {job.id}  {cleaned(job.task)}  {reading}", f"bold {_STYLES.get(reading, '')}".strip())
    say(
        f"queue {cleaned(job.queue)} · priority {job.priority} · attempt {job.attempt} of {job.max_attempts} · "
        f"claimed {job.claims}× · rescued {job.rescues}×"
    )
    if worker:
        say(f"worker {worker}")
    if schedule:
        say(f"schedule {schedule}" + (f" · stands for {job.ticks} ticks" if (job.ticks or 1) > 1 else ""))
    if job.key is not None:
        say(f"key {cleaned(job.key)}")
    if job.subject is not None:
        say(f"about {cleaned(str(job.subject))}")
    if job.units is not None:
        say(f"units {job.units:,}")
    if job.unique_key is not None:
        say(f"unique key {cleaned(job.unique_key)}")


def _print_reasons(reasons: Sequence[WaitReason], now: datetime) -> None:
    for reason in reasons:
        say(sentence(reason, now), "yellow", wrap=True)


def _print_progress(progress: Progress, now: datetime) -> None:
    said = f" {cleaned(mask_passwords(progress.message))}" if progress.message else ""
    ago = _since(progress.written_at, now, short=False)
    say(f"{'progress':<13} {progress.fraction:.0%}{said}  ({ago} ago)")


def _print_times(job: Job, now: datetime) -> None:
    times = {
        "enqueued": job.created_at,
        "tick": job.tick_at,
        "due": job.run_at,
        "expires": job.expires_at,
        "deadline": job.deadline_at,
        "claimed": job.claimed_at,
        "lease ends": job.lease_expires_at,
        "cancel asked": job.cancel_requested_at,
        "finished": job.finished_at,
        "kept until": job.purge_at,
    }
    say("")
    for name, time in times.items():
        if time is not None:
            distance = _since(time, now, short=False)
            distance = f"in {distance}" if time > now else f"{distance} ago"
            say(f"{name:<13} {moment(time)}  ({distance})")


def _print_value(title: str, value: object) -> None:
    say(f"\n{title}", "bold")
    say(cleaned(jsonlib.dumps(value, indent=2, ensure_ascii=False), keep="\n"))


def _print_error(error: dict[str, Any], now: datetime) -> None:
    at = moment_said(error.get("at"))
    when = f"  {moment(at)} ({_since(at, now)} ago)" if at is not None else ""
    say(f"\nattempt {cleaned(error.get('attempt', '?'))}{when}", "bold")
    say(cleaned(mask_passwords(f"{error.get('type')}: {error.get('message')}"), keep="\n"), "red", wrap=True)
    if traceback := cleaned(mask_passwords(str(error.get("traceback") or "")), keep="\n\t").rstrip():
        say("\n".join(f"  {line}" for line in traceback.splitlines()), "dim")
