"""Show a job, or why it is not running: `show` and `why`."""

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
from ..health.one_job import StepSeen, archived_lines, read_steps, schedule_said
from ..models import ArchivedJob, Job, Progress
from ..rules.failures import error_text, moment_said
from ..rules.lifecycle import LIVE, JobStatus
from ..rules.limits import keys_said, units_said
from ..rules.reasons import WaitReason
from ..rules.words import age, duration, follow_ups_of, size
from ..sql.chosen import reading_of
from ..sql.readings.depths import list_workers
from ..statements import job_logs
from ..util.log import one_line
from ..util.urls import mask_passwords, masked, without_secrets
from .config import Config, JobId, Json
from .filters import READING
from .jobs import STYLES, since
from .logs import show_last_lines, show_lines
from .output import cleaned, fail, moment, print_json, say
from .place import transaction

#: Recorded steps that are printed.
_LAST_STEPS = 20


def why(config: Config, id: JobId, json: Json = False) -> None:
    """Explain why a job is not running, which worker runs it, or how it ended.

    The first line is the deciding reason; lines that begin with "also" are further reasons. A line with an arrow says what can
    be done about it. A job that has left the table is searched for in the archive.

    Exit code 0: the job runs, has completed, is in the archive, or will run without help. 1: it needs help, or does not exist.

    sa-jobqueue why 7
    sa-jobqueue why 7 --json
    """
    with transaction(config) as connection:
        found = explain_job(connection, id)
        steps = [step.name for step in read_steps(connection, id)]
    if json:
        print_json({
            "job_id": found.job_id, "status": found.status, "task": found.task, "queue": found.queue, "at": found.at,
            "archived_at": found.archived_at, "needs_help": found.needs_help,
            "reasons": [_reason_as_json(reason, id) for reason in found.reasons], "steps": steps,
        })  # fmt: skip
    else:
        _print_explanation(found)
        if steps:
            more = f"{len(steps) - _LAST_STEPS:,} before, " if len(steps) > _LAST_STEPS else ""
            say(f"recorded steps: {more}{', '.join(map(cleaned, steps[-_LAST_STEPS:]))}", wrap=True)
    if found.needs_help:
        raise typer.Exit(1)


def _moment_and_distance(time: datetime, *, now: datetime) -> str:
    seconds = (time - now).total_seconds()
    return f"{moment(time)} ({f'in {age(seconds)}' if seconds > 0 else f'{age(seconds)} ago'})"


def _sentence(reason: WaitReason, now: datetime) -> str:
    return cleaned(one_line(mask_passwords(reason.said(partial(_moment_and_distance, now=now)))))


def _reason_as_json(reason: WaitReason, job_id: int) -> dict[str, Any]:
    more = {"said": mask_passwords(str(reason)), "needs_help": reason.needs_help, "advice": reason.advice(job_id)}
    return reason._asdict() | {"reason": masked(reason.reason)} | more


def _print_explanation(found: JobExplanation) -> None:
    if found.status is None:
        say(f"job {found.job_id}", "bold")
    else:
        say(f"job {found.job_id}  {cleaned(found.task)}  {found.status}", "bold")
        say(f"queue {cleaned(found.queue)}")
    for position, reason in enumerate(found.reasons):
        style = "red" if reason.needs_help else "yellow" if position == 0 and found.status in LIVE else ""
        say(f"{'also ' if position else ''}{_sentence(reason, found.at)}", style, wrap=True)
        if advice := reason.advice(found.job_id):
            say(f"  → {cleaned(advice)}")


#: The progress of a job; rows of earlier claims are outdated.
_PROGRESS = sa.select(Progress).join(Job, sa.and_(Job.id == Progress.job_id, Job.claim_token == Progress.claim_token))


def show(
    config: Config,
    id: JobId,
    logs: Annotated[
        bool, typer.Option("--logs", help="Show all its log lines that are kept, and nothing else.")
    ] = False,
    json: Json = False,
) -> None:
    """Show one job: why it waits, its arguments, times, progress, steps, every attempt with its error, its last log lines.

    A job that has left the table is searched for in the archive.

    sa-jobqueue show 7 --logs
    """
    with transaction(config) as connection, Session(connection, expire_on_commit=False) as session:
        found = _find(session, id)
    if found is None:
        fail(f"there is no job {id}", 1)
    if logs:
        show_lines(found.lines, json=json)
    elif json:
        print_json(_all_as_json(found))
    else:
        _print_all(found)


class _Progress(NamedTuple):
    """The progress that a handler last reported; `written_at` is None if the time is not known any more."""

    fraction: float
    message: str | None
    written_at: datetime | None


class _Found(NamedTuple):
    """All that `show` shows of a job; `now` is the database's time."""

    job: Job | ArchivedJob
    reading: str
    now: datetime
    worker: str
    schedule: str
    progress: _Progress | None
    lines: Sequence[Any]
    reasons: Sequence[WaitReason]
    steps: Sequence[StepSeen]


def _find(session: Session, id: int) -> _Found | None:
    """Find a job in the table or in the archive; None if it is in neither."""
    lines: Sequence[Any]
    progress = None
    found: Any
    if (found := session.execute(sa.select(Job, READING, sa.func.now()).where(Job.id == id)).one_or_none()) is not None:
        lines = session.execute(job_logs(id)).all()
        if (row := session.scalars(_PROGRESS.where(Job.id == id)).one_or_none()) is not None:
            progress = _Progress(row.fraction, row.message, row.written_at)
    else:
        # After a restore the archive may have the same id twice.
        archived = sa.select(ArchivedJob, reading_of(ArchivedJob), sa.func.now()).where(ArchivedJob.id == id)
        found = session.execute(archived.order_by(ArchivedJob.finished_at.desc()).limit(1)).one_or_none()
        if found is None:
            return None
        job = found[0]
        lines = archived_lines(job)
        progress = None if job.progress is None else _Progress(job.progress, job.progress_message, None)
    job, reading, now = found
    waits = job.status in (JobStatus.QUEUED, JobStatus.BLOCKED)
    return _Found(
        job, reading, now, _name_of_worker(session, job.worker), cleaned(schedule_said(session.connection(), job.schedule_id)), progress,
        lines, explain_job(session, job.id).reasons if waits else (),
        read_steps(session.connection(), id, job=cast(Any, type(job))),
    )  # fmt: skip


def _all_as_json(found: _Found) -> dict[str, Any]:
    job, progress = found.job, found.progress
    columns = {column: getattr(job, column) for column in type(job).__table__.columns.keys()}  # noqa: SIM118
    seconds = {f"{name}_seconds": time.total_seconds() for name, time in _durations(job, found.now).items()}
    more = {
        "progress": progress and progress.fraction,
        "progress_message": masked(progress and progress.message),
        "progress_at": progress and progress.written_at,
        "archived_at": columns.get("archived_at"),
        "reading": found.reading,
        "waits_for": [_reason_as_json(reason, job.id) for reason in found.reasons],
        "steps": [step._asdict() | {"result": masked(step.result)} for step in found.steps],
    }
    columns["args"] = without_secrets(columns["args"])
    return columns | more | seconds | {name: masked(columns[name]) for name in ("errors", "logs") if name in columns}


def _print_all(found: _Found) -> None:
    job, now = found.job, found.now
    _print_head(job, found.reading, found.worker, found.schedule)
    for reason in found.reasons:
        say(_sentence(reason, now), "yellow", wrap=True)
    _print_times(job, now)
    for name, time in _durations(job, now).items():
        say(f"{name:<13} {duration(time.total_seconds())}")
    if (progress := found.progress) is not None:
        message = f" {cleaned(mask_passwords(progress.message))}" if progress.message else ""
        ago = "" if progress.written_at is None else f"  ({since(progress.written_at, now, short=False)} ago)"
        say(f"{'progress':<13} {progress.fraction:.0%}{message}{ago}")
    _print_value("arguments", without_secrets(job.args))
    if job.meta:
        _print_value("meta", job.meta)
    if job.result is not None:
        _print_value("result", job.result)
    if isinstance(job, ArchivedJob) and job.columns:
        _print_value("columns", job.columns)
    if found.steps:
        _print_steps(found.steps, now)
    # The application may have written into the column, too: anything else than an entry of an attempt is shown as it is.
    errors = cast(object, job.errors)
    for error in cast(list[object], errors) if isinstance(errors, list) else [errors]:
        if isinstance(error, dict):
            _print_error(cast(dict[str, Any], error), now)
        else:
            _print_value("error", masked(error))
    if found.lines:
        show_last_lines(found.lines)


def _print_steps(steps: Sequence[StepSeen], now: datetime) -> None:
    hidden = f" (the last {_LAST_STEPS} of {len(steps):,})" if len(steps) > _LAST_STEPS else ""
    say(f"\nsteps{hidden}", "bold")
    for step in steps[-_LAST_STEPS:]:
        parts = [
            step.name, "" if step.kind == "step" else f"({step.kind})", f"revision {step.revision}" if step.revision > 1 else "",
            f"{moment(step.ended_at)} ({since(step.ended_at, now)} ago)", "" if step.took is None else f"took {duration(step.took)}",
            "orphaned: the completed run did not call it" if step.orphaned else "", _value_of(step),
        ]  # fmt: skip
        say(f"  {cleaned('  '.join(filter(None, parts)))}", wrap=True)


def _value_of(step: StepSeen) -> str:
    if step.result is None:
        return "" if step.size is None else f"({size(step.size)})"
    return jsonlib.dumps(masked(step.result), ensure_ascii=False)


def _durations(job: Job | ArchivedJob, now: datetime) -> dict[str, timedelta]:
    """How long the due job waited for its last attempt, and how long that ran, or has been running."""
    claimed, end = job.claimed_at, job.finished_at or (now if job.status == JobStatus.RUNNING else None)
    if claimed is None or end is None or claimed < job.run_at or end < claimed:
        return {}  # not begun, or the times are those of an earlier attempt
    return {"waited": claimed - job.run_at, "ran": end - claimed}


def _name_of_worker(session: Session, id: str | None) -> str:
    """The host and process of a worker; its id alone if it has left."""
    if id is None:
        return ""
    row = next((row for row in session.execute(list_workers()) if str(row.id) == id), None)
    return f"{cleaned(id)}, which has left" if row is None else f"{cleaned(row.host)}:{row.pid} ({cleaned(id)})"


def _print_head(job: Job | ArchivedJob, reading: str, worker: str, schedule: str) -> None:
    where = "  (in the archive)" if isinstance(job, ArchivedJob) else ""
    say(f"job {job.id}  {cleaned(job.task)}  {reading}{where}", f"bold {STYLES.get(reading, '')}".strip())
    say(
        f"queue {cleaned(job.queue)} · priority {job.priority} · attempt {job.attempt} of {job.max_attempts} · "
        f"claimed {job.claims}× · rescued {job.rescues}×"
    )
    if schedule and (job.ticks or 1) > 1:
        schedule += f" · stands for {job.ticks} ticks"
    extras: dict[str, Any] = job.extras if isinstance(job.extras, dict) else {}  # by hand it may be any JSON
    units = units_said(job.units, extras)
    details = {
        "worker": worker or None, "schedule": schedule or None, "key": job.key, "other keys": keys_said(extras), "about": job.subject, "units": units, "version": extras.get("version"),
        "unique key": job.unique_key, **follow_ups_of(extras),
    }  # fmt: skip
    for name, value in details.items():
        if value is not None:
            say(f"{name} {cleaned(value)}")


def _print_times(job: Job | ArchivedJob, now: datetime) -> None:
    times = {
        "enqueued": job.created_at, "tick": job.tick_at, "due": job.run_at, "expires": job.expires_at,
        "deadline": job.deadline_at, "claimed": job.claimed_at, "lease ends": job.lease_expires_at,
        "cancel asked": job.cancel_requested_at, "finished": job.finished_at, "kept until": job.purge_at,
        "archived": job.archived_at if isinstance(job, ArchivedJob) else None,
    }  # fmt: skip
    say("")
    for name, time in times.items():
        if time is not None:
            distance = since(time, now, short=False)
            say(f"{name:<13} {moment(time)}  ({f'in {distance}' if time > now else f'{distance} ago'})")


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
