"""Looking at one job: `show`."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, NamedTuple, cast

import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from ..health.explain import JobExplanation, explain_job
from ..models import ArchivedJob, Job, Progress, Schedule
from ..rules.failures import error_text, moment_said
from ..rules.lifecycle import LIVE, JobStatus
from ..rules.reasons import WaitReason
from ..rules.words import age, duration
from ..sql.readings.depths import list_workers
from ..statements import job_logs
from ..util.log import one_line
from ..util.urls import mask_passwords, masked
from .config import Config, Json, parse_id
from .filters import READING
from .jobs import STYLES, Said, find_archived, lines_of, said_of, since
from .logs import show_last_lines, show_lines
from .output import cleaned, fail, moment, print_json, say
from .place import transaction


def why(
    config: Config,
    id: Annotated[int, typer.Argument(metavar="ID", parser=parse_id, help="The job's number.")],
    json: Json = False,
) -> None:
    """Say why a job is not being run; or which worker runs it, or how it has ended.

    The first line is the deciding reason, and each line after "also" one more. A line with an arrow says what can be done about it.

    A job that is not in the table any more is looked for in the archive.

    Exit code 0: it runs, has completed, is in the archive, or will run without help. 1: it will not, unless something is done; or there is no such job.

    sa-jobqueue why 7
    sa-jobqueue why 7 --json
    """
    with transaction(config) as connection:
        found = explain_job(connection, id)
    if json:
        print_json(_as_json(found))
    else:
        _print(found)
    if found.needs_help:
        raise typer.Exit(1)


def moment_and_distance(time: datetime, *, now: datetime) -> str:
    """A time in the zone of this machine, and how far away it is."""
    seconds = (time - now).total_seconds()
    return f"{moment(time)} ({f'in {age(seconds)}' if seconds > 0 else f'{age(seconds)} ago'})"


def sentence(one: WaitReason, now: datetime) -> str:
    """The reason in a line."""
    return cleaned(one_line(mask_passwords(one.said(partial(moment_and_distance, now=now)))))


def reason_as_json(one: WaitReason, job_id: int) -> dict[str, Any]:
    """The reason as data, with its sentence, and what can be done about it."""
    said = {"said": mask_passwords(str(one)), "needs_help": one.needs_help, "advice": one.advice(job_id)}
    return one._asdict() | {"reason": masked(one.reason)} | said


def _as_json(found: JobExplanation) -> dict[str, Any]:
    reasons = [reason_as_json(one, found.job_id) for one in found.reasons]
    return {
        "job_id": found.job_id, "status": found.status, "task": found.task, "queue": found.queue, "at": found.at,
        "archived_at": found.archived_at, "needs_help": found.needs_help, "reasons": reasons,
    }  # fmt: skip


def _print(found: JobExplanation) -> None:
    if found.status is None:
        say(f"job {found.job_id}", "bold")
    else:
        say(f"job {found.job_id}  {cleaned(found.task)}  {found.status}", "bold")
        say(f"queue {cleaned(found.queue)}")
    for place, one in enumerate(found.reasons):
        said = sentence(one, found.at)
        style = "red" if one.needs_help else "yellow" if place == 0 and found.status in LIVE else ""
        say(said if place == 0 else f"also {said}", style, wrap=True)
        if advice := one.advice(found.job_id):
            say(f"  → {cleaned(advice)}")


#: How far a job is; a row of an earlier claim says nothing.
_PROGRESS = sa.select(Progress).join(Job, sa.and_(Job.id == Progress.job_id, Job.claim_token == Progress.claim_token))


def show(
    config: Config,
    id: Annotated[int, typer.Argument(metavar="ID", parser=parse_id, help="The job's number.")],
    logs: Annotated[bool, typer.Option("--logs", help="All log lines that are kept of it, and nothing else.")] = False,
    json: Json = False,
) -> None:
    """Show one job: why it waits, its arguments, its times, how far it is, every attempt with its error, its last log lines.

    A job that is not in the table any more is looked for in the archive.

    sa-jobqueue show 7 --logs
    """
    with transaction(config) as connection, Session(connection, expire_on_commit=False) as session:
        found = _find(session, id)
    if found is None:
        fail(f"there is no job {id}", 1)
    if logs:
        show_lines(found.lines, json=json)
    elif json:
        print_json(_all_of(found))
    else:
        _print_all(found)


class _Found(NamedTuple):
    """What is known of a job; `now` is the database's time."""

    job: Job | ArchivedJob
    reading: str
    now: datetime
    worker: str
    schedule: str
    said: Said | None
    lines: Sequence[Any]
    reasons: Sequence[WaitReason]


def _find(session: Session, id: int) -> _Found | None:
    """A job of the table, or of the archive; None if there is none."""
    lines: Sequence[Any]
    if (found := session.execute(sa.select(Job, READING, sa.func.now()).where(Job.id == id)).one_or_none()) is not None:
        lines = session.execute(job_logs(id)).all()
        said = said_of(found[0], session.scalars(_PROGRESS.where(Job.id == id)).one_or_none())
    elif (found := find_archived(session, id)) is not None:
        lines, said = lines_of(found[0]), said_of(found[0], None)
    else:
        return None
    job, reading, now = found
    return _Found(
        job, reading, now, _name_of_worker(session, job.worker), _name_of_schedule(session, job.schedule_id), said, lines,
        _reasons(session, job),
    )  # fmt: skip


def _all_of(found: _Found) -> dict[str, Any]:
    job, said = found.job, found.said
    columns = {column: getattr(job, column) for column in type(job).__table__.columns.keys()}  # noqa: SIM118
    seconds = {f"{name}_seconds": time.total_seconds() for name, time in _durations(job, found.now).items()}
    more = {
        "progress": said and said.fraction,
        "progress_message": masked(said and said.message),
        "progress_at": said and said.written_at,
        "archived_at": columns.get("archived_at"),
        "reading": found.reading,
        "waits_for": [reason_as_json(reason, job.id) for reason in found.reasons],
    }
    return columns | more | seconds | {name: masked(columns[name]) for name in ("errors", "logs") if name in columns}


def _print_all(found: _Found) -> None:
    job, now = found.job, found.now
    _print_head(job, found.reading, found.worker, found.schedule)
    _print_reasons(found.reasons, now)
    _print_times(job, now)
    for name, time in _durations(job, now).items():
        say(f"{name:<13} {duration(time.total_seconds())}")
    if found.said is not None:
        _print_progress(found.said, now)
    _print_value("arguments", job.args)
    if job.meta:
        _print_value("meta", job.meta)
    if job.result is not None:
        _print_value("result", job.result)
    if isinstance(job, ArchivedJob) and job.columns:
        _print_value("columns", job.columns)
    # The application may have written there, too: what is no entry of an attempt is shown as it is.
    errors = cast(object, job.errors)
    for error in cast(list[object], errors) if isinstance(errors, list) else [errors]:
        if isinstance(error, dict):
            _print_error(cast(dict[str, Any], error), now)
        else:
            _print_value("error", masked(error))
    if found.lines:
        show_last_lines(found.lines)


def _reasons(session: Session, job: Job | ArchivedJob) -> Sequence[WaitReason]:
    """Why it waits, if it does."""
    return explain_job(session, job.id).reasons if job.status in (JobStatus.QUEUED, JobStatus.BLOCKED) else ()


def _durations(job: Job | ArchivedJob, now: datetime) -> dict[str, timedelta]:
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
    name = session.scalars(sa.select(Schedule.name).where(Schedule.id == id)).one_or_none()
    return f"number {id}, which was removed" if name is None else cleaned(name)


def _print_head(job: Job | ArchivedJob, reading: str, worker: str, schedule: str) -> None:
    where = "  (in the archive)" if isinstance(job, ArchivedJob) else ""
    say(f"job {job.id}  {cleaned(job.task)}  {reading}{where}", f"bold {STYLES.get(reading, '')}".strip())
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


def _print_progress(said: Said, now: datetime) -> None:
    message = f" {cleaned(mask_passwords(said.message))}" if said.message else ""
    ago = "" if said.written_at is None else f"  ({since(said.written_at, now, short=False)} ago)"
    say(f"{'progress':<13} {said.fraction:.0%}{message}{ago}")


def _print_times(job: Job | ArchivedJob, now: datetime) -> None:
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
        "archived": job.archived_at if isinstance(job, ArchivedJob) else None,
    }
    say("")
    for name, time in times.items():
        if time is not None:
            distance = since(time, now, short=False)
            distance = f"in {distance}" if time > now else f"{distance} ago"
            say(f"{name:<13} {moment(time)}  ({distance})")


def _print_value(title: str, value: object) -> None:
    say(f"\n{title}", "bold")
    say(jsonlib.dumps(value, indent=2, ensure_ascii=False))


def _print_error(error: dict[str, Any], now: datetime) -> None:
    at = moment_said(error.get("at"))
    when = f"  {moment(at)} ({since(at, now)} ago)" if at is not None else ""
    say(f"\nattempt {cleaned(error.get('attempt', '?'))}{when}", "bold")
    say(mask_passwords(error_text(error.get("type"), error.get("message"))), "red", wrap=True)
    if traceback := mask_passwords(str(error.get("traceback") or "")).rstrip():
        say("\n".join(f"  {line}" for line in traceback.splitlines()), "dim")
