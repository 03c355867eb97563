"""Jobs counted by queue, and what jobs came to: `stats`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, cast

import sqlalchemy as sa
import typer

from ..errors import ConfigurationError
from ..health.read import ALWAYS, QUANTILES, Figures, named
from ..models import Job
from ..rules.words import age, duration, estimated, size
from ..sql.chosen import is_worker
from ..sql.readings.depths import list_workers
from ..sql.readings.stats import HOURS_KEPT, MINUTES_KEPT
from ..statements import count_jobs, drain_workers, sum_stats
from .config import Config, Json, parse_duration
from .filters import Queues
from .output import Column, last_part, note, print_json, print_table, rate, say
from .place import transaction

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
#: Lines of a table by time.
_MOST_STEPS = 2_000


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for, checked. Raises ConfigurationError."""

    since: timedelta
    by: Sequence[str]
    queues: Sequence[str] = ()
    tasks: Sequence[str] = ()
    step: timedelta | None = None

    def __post_init__(self) -> None:
        if not _MINUTE <= self.since <= HOURS_KEPT:
            raise ConfigurationError(
                f"--since must be 1m to {HOURS_KEPT.days}d, because jobs are counted by the minute and the counts are kept for {HOURS_KEPT.days} days, not {_span(self.since)}"
            )
        if self.step is None:
            return
        if self.step < _MINUTE:
            raise ConfigurationError(f"--step must be 1m or longer, not {self.step.total_seconds():g} s")
        if self.step < _HOUR and self.since > MINUTES_KEPT:
            raise ConfigurationError(
                f"--step must be 1h or longer where --since is over {MINUTES_KEPT.days}d, because older counts are by the hour, not {_span(self.step)}"
            )
        if self.since / self.step > _MOST_STEPS:
            raise ConfigurationError(
                f"--step {_span(self.step)} divides {_span(self.since)} into more than {_MOST_STEPS:,} parts; give a longer one"
            )


def parse_by(texts: Sequence[str]) -> list[str]:
    """The names in `--by`, which may be lists with commas. Raises typer.BadParameter."""
    names = [name.strip() for text in texts for name in text.split(",")]
    for name in names:
        if name not in {"queue", "task"}:
            raise typer.BadParameter(f"{name!r} is neither queue nor task", param_hint="'--by'")
    return [name for name in ("queue", "task") if name in names]


def show_outcomes(connection: sa.Connection, asked: Question, *, json: bool) -> None:
    """Print what jobs came to, as a table or as JSON."""
    begin, now = connection.execute(
        sa.select(sa.func.date_trunc("minute", sa.func.now() - asked.since), sa.func.now())
    ).one()  # as `sum_stats` begins
    statement = sum_stats(
        since=asked.since, by=cast(Any, asked.by), queues=asked.queues, tasks=asked.tasks, step=asked.step
    )
    rows = connection.execute(statement).all()
    figures = [Figures.of([row], _seconds(row, asked.step, begin, now)) for row in rows]
    keys = [*(["at"] if asked.step is not None else []), *asked.by]
    if json:
        lines = [_as_json(row, one, keys) for row, one in zip(rows, figures, strict=True)]
        print_json({"since": begin, "until": now, "by": asked.by, "rows": lines})
        return
    if not any(sum(one.counts.values()) for one in figures):
        note(f"workers have counted no such jobs in the last {_span(asked.since)}")
        return
    names = named(figures)
    table: list[list[str]] = [
        [*_keys(row, keys, asked.since), *_cells(one, names)] for row, one in zip(rows, figures, strict=True)
    ]
    styles = [""] * len(rows)
    if asked.by and asked.step is None and len(rows) > 1:
        total = Figures.of(rows, (now - begin).total_seconds())
        table.append(["(all)", *[""] * (len(keys) - 1), *_cells(total, names)])
        styles.append("bold")
    print_table([*_key_columns(keys), *_columns(names, keys)], table, styles=styles, rule=False)
    note(f"since {begin.astimezone():%Y-%m-%d %H:%M %Z} · /min: jobs that ended · up to 10 s behind")


def _seconds(row: Any, step: timedelta | None, begin: datetime, now: datetime) -> float:
    """The time that a row stands for; the first and the last step may have begun before, or not be over."""
    if step is not None:
        begin, now = max(begin, row.at), min(now, row.at + step)
    return float((now - begin).total_seconds())


def _columns(names: Sequence[str], keys: Sequence[str]) -> Iterator[Column]:
    # Where there are two names beside each other, 80 columns have no place for medians, either.
    left_out = {"mean", "p99", *(["p50"] if len(keys) > 1 else [])}
    for name in names:
        yield Column(name, "right", optional=name not in ALWAYS)
    yield Column("/min", "right")
    for kind in ("run", "wait"):
        for name in ("mean", *QUANTILES):
            yield Column(f"{kind} {name}", "right", optional=name in left_out)


def _key_columns(keys: Sequence[str]) -> list[Column]:
    return [
        Column("since")
        if key == "at"
        else Column(key, wide=True, least=10, shortened=last_part if key == "task" else None)
        for key in keys
    ]


def _keys(row: Any, keys: Sequence[str], since: timedelta) -> list[str]:
    form = "%H:%M" if since < timedelta(days=1) else "%m-%d %H:%M"
    return [row.at.astimezone().strftime(form) if key == "at" else getattr(row, key) for key in keys]


def _cells(one: Figures, names: Sequence[str]) -> list[str]:
    times: list[str] = []
    for of in (one.run, one.wait):
        for name in ("mean", *QUANTILES):
            seconds = of(name)
            times.append("" if seconds is None else duration(seconds) if name == "mean" else estimated(seconds))
    return [*(f"{one.counts[name]:,}" for name in names), rate(one.per_minute()), *times]


def _as_json(row: Any, one: Figures, keys: Sequence[str]) -> dict[str, Any]:
    said: dict[str, Any] = {key: getattr(row, key) for key in keys} | one.counts | {"per_minute": one.per_minute()}
    for name in ("mean", *QUANTILES):
        said |= {f"run_{name}": one.run(name), f"wait_{name}": one.wait(name)}
    return said


def _span(time: timedelta) -> str:
    return age(time.total_seconds())


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


# ---- The worker processes: `workers`, and `drain`, which asks some to end.


def workers(config: Config, *, json: Json = False) -> None:
    """List the worker processes, with their memory and how long their event loops lately took to answer. With --json also the version of
    the schema that each is made for, and its lease.

    One that was not seen for 60 s, or has let a lease run out, is stale: killed, frozen, or cut off. One that claims less because the
    database is over a threshold (work --max-lock-waits and others) is held back.
    """
    with transaction(config) as connection:
        rows = connection.execute(list_workers()).mappings().all()
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
            Column("memory", "right", optional=True),
            Column("loop lag", "right", optional=True),
            Column("up", "right"),
            Column("seen", "right"),
            Column("state"),
        ],
        [
            (
                f"{row.host}:{row.pid}", " ".join(row.queues), row.running, row.concurrency,
                "" if row.memory is None else size(row.memory),
                "" if row.loop_lag is None else duration(row.loop_lag),
                age(row.age, short=True), f"{age(row.unseen, short=True)} ago", _state(row),
            )
            for row in rows
        ],
        styles=["" if _state(row) == "live" else "yellow" for row in rows],
    )  # fmt: skip
    for row in rows:
        if row.pressure and not row.stale:
            note(f"{row.host}:{row.pid} is held back: {row.pressure}")


def drain(
    config: Config,
    names: Annotated[
        list[str],
        typer.Argument(metavar="WORKER", help="HOST:PID as `workers` shows it, or a HOST: all of its workers."),
    ],
    *,
    json: Json = False,
) -> None:
    """Ask worker processes to drain, as SIGTERM does, from anywhere: they claim no more, let running jobs finish, and end.

    A worker hears of it within 20 s. What has started it, such as `work --processes` or systemd, may start another in its place.

    sa-jobqueue drain web-1:4711
    sa-jobqueue drain web-1
    """
    with transaction(config) as connection:
        asked = connection.scalars(drain_workers(sa.or_(*map(is_worker, names)))).all()
    if json:
        print_json({"action": "drained", "workers": asked})
    elif asked:
        say(f"asked {len(asked)} worker{'' if len(asked) == 1 else 's'} to drain")
    else:
        note("no such worker, or each was asked before; `sa-jobqueue workers` lists them")
    if not asked:
        raise typer.Exit(1)


def _state(row: Any) -> str:
    if row.stale:
        return "stale"
    if row.drain_requested_at is not None:
        return "draining"
    return "held back" if row.pressure else "live"
