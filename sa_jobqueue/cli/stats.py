"""Jobs counted by queue, and what jobs came to: `stats`."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import typer

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.models import Job
from sa_jobqueue.statements import count_jobs

from .config import Config
from .filters import Queues
from .options import Json, parse_duration
from .outcomes import Question, parse_by, show_outcomes
from .output import Column, age, note, print_json, print_table
from .place import transaction

__all__ = ["stats"]

_over_time = partial(typer.Option, rich_help_panel="What jobs came to")


def stats(
    config: Config,
    *,
    queue: Queues = [],  # noqa: B006  # Typer's
    lately: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME",
            parser=parse_duration,
            show_default=False,
            help="completed, failed, cancelled: within this time; 1h, unless you say. Not with --since.",
        ),
    ] = None,
    since: Annotated[
        timedelta | None,
        _over_time(
            metavar="TIME",
            parser=parse_duration,
            help="Say what jobs came to within this time: 5m, 1h, 7d; at most 90d.",
        ),
    ] = None,
    by: Annotated[
        list[str],
        _over_time(
            metavar="NAME", help="A line for each queue, task, or queue,task. May be repeated.", show_default="queue"
        ),
    ] = [],  # noqa: B006
    task: Annotated[list[str], _over_time("--task", "-t", metavar="NAME", help="Of this task. May be repeated.")] = [],  # noqa: B006
    step: Annotated[
        timedelta | None,
        _over_time(metavar="TIME", parser=parse_duration, help="Lines for each such time, too: 1m, 5m, 1h."),
    ] = None,
    json: Json = False,
) -> None:
    """Count the jobs of each queue by their status; with --since say what jobs came to, how long they ran and waited.

    What jobs came to is counted by workers: by the minute for 7 days, by the hour for 90 days. It stays when the jobs are deleted.

    sa-jobqueue stats --lately 24h
    sa-jobqueue stats --since 1h --by task
    sa-jobqueue stats --since 6h --task shop.send_receipt --step 15m
    """
    if since is None:
        for option, given in (("--by", by), ("--task", task), ("--step", step)):
            if given:
                raise ConfigurationError(f"{option} needs --since: say since when, as in --since 1h")
        _show_counts(config, queue, timedelta(hours=1) if lately is None else lately, json=json)
        return
    if lately is not None:
        raise ConfigurationError("--lately and --since contradict each other: give one of them")
    asked = Question(since, parse_by(by) if by else ["queue"] if step is None else [], queue, task, step)
    with transaction(config) as connection:
        show_outcomes(connection, asked, json=json)


def _show_counts(config: Config, queue: list[str], lately: timedelta, *, json: bool) -> None:
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
