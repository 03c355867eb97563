"""Looking at jobs: `list` and `show`."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, cast

import typer
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.models import Job
from sa_jobqueue.urls import mask_passwords

from .common import Config, Json, fail, one_line, transaction
from .filters import Chosen, parse_id
from .output import Column, age, cleaned, masked, moment, note, print_json, print_table, say

__all__ = ["list_jobs", "show"]

_STYLES = {"failed": "red", "cancelled": "dim", "running": "cyan", "retrying": "yellow", "completed": "green"}

_COLUMNS = (
    Column("id", "right"),
    Column("status"),
    Column("queue", wide=True),
    Column("task", wide=True),
    Column("attempt", "right"),
    Column("age", "right"),
    Column("when"),
    Column("error", wide=True),
)


def list_jobs(
    config: Config,
    chosen: Chosen,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1_000_000_000, help="At most so many jobs.")
    ] = 50,
    json: Json = False,
) -> None:
    """List jobs, the newest first.

    sa-jobqueue list --status failed --newer-than 2h
    sa-jobqueue list --queue mail --status due --json
    """
    reading = case((Job.is_retrying, "retrying"), (Job.is_scheduled, "scheduled"), else_=Job.status)
    last = Job.errors[-1]
    statement = (
        select(
            Job.id, Job.status, reading.label("reading"), Job.queue, Job.task, Job.priority, Job.attempt, Job.max_attempts, Job.rescues,
            Job.created_at, Job.run_at, Job.claimed_at, Job.finished_at, Job.cancel_requested_at, Job.worker,
            last["type"].astext.label("error_type"), last["message"].astext.label("error_message"), func.now().label("now"),
        )
        .where(*chosen.criteria())
        .order_by(Job.id.desc())
        .limit(limit + 1)
    )  # fmt: skip
    with transaction(config) as connection:
        rows: Sequence[Any] = connection.execute(statement).mappings().all()
    shown = rows[:limit]
    if json:
        print_json([_as_json(row) for row in shown])
    elif shown:
        print_table(_COLUMNS, map(_as_line, shown), styles=[_STYLES.get(row.reading, "") for row in shown])
    else:
        note("no such jobs")
    if len(rows) > limit:
        note(f"the newest {limit}; --limit N shows more")


def _as_json(row: Any) -> dict[str, Any]:
    job = {name: value for name, value in row.items() if name != "now"}
    return job | {name: masked(job[name]) for name in ("error_type", "error_message")}


def _as_line(row: Any) -> tuple[object, ...]:
    error = one_line(mask_passwords(f"{row.error_type}: {row.error_message}")) if row.error_type is not None else ""
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
    json: Json = False,
) -> None:
    """Show one job: its arguments, its times, every attempt with its error."""
    with transaction(config) as connection, Session(connection, expire_on_commit=False) as session:
        job = session.get(Job, id)
        now = session.scalar(select(func.now()))
    if job is None or now is None:
        fail(f"there is no job {id}", 1)
    if json:
        columns = {column: getattr(job, column) for column in Job.__table__.columns.keys()}  # noqa: SIM118
        print_json(columns | {"errors": masked(job.errors)})
        return
    _print_head(job)
    _print_times(job, now)
    _print_value("arguments", job.args)
    if job.meta:
        _print_value("meta", job.meta)
    if job.result is not None:
        _print_value("result", job.result)
    # Not of our making, perhaps: whatever is no entry of an attempt is shown as it is.
    errors = cast(object, job.errors)
    for error in cast(list[object], errors) if isinstance(errors, list) else [errors]:
        if isinstance(error, dict):
            _print_error(cast(dict[str, Any], error), now)
        else:
            _print_value("error", masked(error))


def _print_head(job: Job) -> None:
    status = str(job.status)
    say(f"job {job.id}  {cleaned(job.task)}  {status}", f"bold {_STYLES.get(status, '')}".strip())
    say(
        f"queue {cleaned(job.queue)} · priority {job.priority} · attempt {job.attempt} of {job.max_attempts} · "
        f"claimed {job.claims}× · rescued {job.rescues}×"
    )
    if job.worker is not None:
        say(f"worker {cleaned(job.worker)}")


def _print_times(job: Job, now: datetime) -> None:
    times = {
        "enqueued": job.created_at,
        "due": job.run_at,
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
    at = _time(error.get("at"))
    when = f"  {moment(at)} ({_since(at, now)} ago)" if at is not None else ""
    say(f"\nattempt {cleaned(error.get('attempt', '?'))}{when}", "bold")
    say(cleaned(mask_passwords(f"{error.get('type')}: {error.get('message')}"), keep="\n"), "red", wrap=True)
    if traceback := cleaned(mask_passwords(str(error.get("traceback") or "")), keep="\n\t").rstrip():
        say("\n".join(f"  {line}" for line in traceback.splitlines()), "dim")


def _time(said: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(said))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None
