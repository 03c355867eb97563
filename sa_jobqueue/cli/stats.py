"""Jobs counted by queue: `stats`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from sa_jobqueue.models import Job
from sa_jobqueue.statements import count_jobs

from .config import Config
from .filters import Queues
from .options import Json, parse_duration
from .output import Column, age, note, print_json, print_table
from .place import transaction

__all__ = ["stats"]


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
    """Count the jobs of each queue by their status.

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
