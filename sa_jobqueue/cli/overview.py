"""Looking at the whole: `stats` and `workers`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer
from sqlalchemy import Float, Text, cast, column, func, or_, select, table

from sa_jobqueue.lifecycle import JobStatus
from sa_jobqueue.models import Job, WorkerRow, status_literal
from sa_jobqueue.statements import count_jobs
from sa_jobqueue.worker.connections.listener import LISTENS_FOR

from .common import Config, Json, transaction
from .filters import Queues, parse_duration
from .output import Column, age, note, print_json, print_table

__all__ = ["STALE", "stats", "workers", "workers_statement"]

_ACTIVITY = table("pg_stat_activity", column("datname"), column("application_name"), schema="pg_catalog")
#: Seconds: a worker says that it lives every 20 s at the latest.
STALE = 60.0


def stats(
    config: Config,
    *,
    queue: Queues = [],  # noqa: B006  # Typer's
    lately: Annotated[
        timedelta,
        typer.Option(metavar="TIME", parser=parse_duration, help="completed, failed, cancelled: within this time."),
    ] = timedelta(hours=1),
    json: Json = False,
) -> None:
    """Count the jobs of each queue by what they are.

    sa-jobqueue stats --lately 24h
    """
    where = [Job.queue.in_(queue)] if queue else []
    with transaction(config) as connection:
        statement: Any = count_jobs(*where, lately=lately.total_seconds())
        rows = [dict(row) for row in connection.execute(statement).mappings()]
    if json:
        print_json({"lately_seconds": lately.total_seconds(), "queues": rows})
        return
    if not rows:
        note("no jobs")
        return
    names = ["queued", "due", "oldest_due_age", "blocked", "running", "completed", "failed", "cancelled"]
    if not any(row["blocked"] for row in rows):
        names.remove("blocked")
    lines = [[row["queue"], *(_cell(name, row[name]) for name in names)] for row in rows]
    if len(rows) > 1:
        lines.append(["(all)", *(_cell(name, _total(name, rows)) for name in names)])
    print_table(
        [Column("queue", wide=True), *(Column(_TITLES.get(name, name), "right") for name in names)],
        lines,
        styles=[*[""] * len(rows), *["bold"] * (len(lines) - len(rows))],
    )
    note(f"completed, failed, cancelled: within the last {age(lately.total_seconds())}")


_TITLES = {"oldest_due_age": "oldest due"}


def _cell(name: str, value: Any) -> str:
    return age(value) if name == "oldest_due_age" else f"{value:,}"


def _total(name: str, rows: list[dict[str, Any]]) -> Any:
    values = [row[name] for row in rows if row[name] is not None]
    return max(values, default=None) if name == "oldest_due_age" else sum(values)


def workers_statement() -> Any:
    """A row per worker process that has not left: its columns, `age` and `unseen` in seconds, jobs `running`, whether it
    is `listening` for wake-ups, and whether it is `stale`: unseen for long, or it has let a lease run out.
    """
    held = (
        select(func.count())
        .where(Job.status == status_literal(JobStatus.RUNNING), Job.worker == cast(WorkerRow.id, Text))
        .correlate(WorkerRow)
    )
    running = held.scalar_subquery()
    expired = held.where(Job.lease_expires_at <= func.now()).scalar_subquery()
    started = func.extract("epoch", func.now() - WorkerRow.started_at)
    seen = func.extract("epoch", func.now() - WorkerRow.seen_at)
    listeners = select(func.left(_ACTIVITY.c.application_name, len(LISTENS_FOR) + 36)).where(
        _ACTIVITY.c.datname == func.current_database()
    )
    return select(
        WorkerRow.id,
        WorkerRow.host,
        WorkerRow.pid,
        WorkerRow.queues,
        WorkerRow.concurrency,
        WorkerRow.version,
        WorkerRow.started_at,
        WorkerRow.seen_at,
        cast(started, Float).label("age"),
        cast(seen, Float).label("unseen"),
        or_(seen > STALE, expired > 0).label("stale"),
        running.label("running"),
        func.concat(LISTENS_FOR, cast(WorkerRow.id, Text)).in_(listeners).label("listening"),
    ).order_by(WorkerRow.started_at, WorkerRow.id)


def workers(config: Config, *, json: Json = False) -> None:
    """List the worker processes.

    One that was not seen for 60 s, or has let a lease run out, is stale: killed, frozen, or cut off.
    """
    with transaction(config) as connection:
        rows = connection.execute(workers_statement()).mappings().all()
    if json:
        print_json([dict(row) for row in rows])
        return
    if not rows:
        note("no workers; start one with `sa-jobqueue work`")
        return
    print_table(
        [
            Column("worker", wide=True),
            Column("queues", wide=True),
            Column("running", "right"),
            Column("slots", "right"),
            Column("up", "right"),
            Column("seen", "right"),
            Column("state"),
        ],
        [
            (
                f"{row.host}:{row.pid}", " ".join(row.queues), row.running, row.concurrency,
                age(row.age, short=True), f"{age(row.unseen, short=True)} ago", "stale" if row.stale else "live",
            )
            for row in rows
        ],
        styles=["yellow" if row.stale else "" for row in rows],
    )  # fmt: skip
