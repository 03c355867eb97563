"""Statistics of queues and tasks: `stats`. The worker processes: `workers`, `workers set` and `drain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from time import monotonic, sleep
from typing import Annotated, Any, cast
from uuid import UUID

import sqlalchemy as sa
import typer

from ..errors import ConfigurationError
from ..health.read import ALWAYS, QUANTILES, Figures, named
from ..models import Job, WorkerRow
from ..rules.words import age, duration, estimated, size
from ..sql.chosen import is_worker
from ..sql.readings.depths import list_workers
from ..sql.readings.stats import HOURS_KEPT, MINUTES_KEPT
from ..sql.workers import slots_wanted
from ..statements import count_jobs, drain_workers, record_action, set_slots, sum_stats
from .config import Config, Json, duration_option, queues_of
from .filters import Queues
from .output import Column, last_part, note, print_json, print_table, rate, say
from .place import open_engine, transaction

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
#: Seconds that `workers set` waits for a worker beyond the time in which it renews its row, and seconds between two looks.
_MARGIN, _LOOK_EVERY = 10.0, 0.2
#: The most lines of a table by time.
_MOST_STEPS = 2_000


@dataclass(frozen=True, slots=True)
class _Question:
    """The period, grouping and filters of a table of ended jobs. Raises ConfigurationError."""

    since: timedelta
    by: Sequence[str]
    queues: Sequence[str] = ()
    tasks: Sequence[str] = ()
    step: timedelta | None = None

    def __post_init__(self) -> None:
        if not _MINUTE <= self.since <= HOURS_KEPT:
            days = HOURS_KEPT.days
            raise ConfigurationError(
                f"--since must be 1m to {days}d, because jobs are counted by the minute and the counts are kept for {days} days, not {_span(self.since)}"
            )
        if self.step is None:
            return
        if self.step < _MINUTE:
            raise ConfigurationError(f"--step must be 1m or longer, not {self.step.total_seconds():g} s")
        if self.step < _HOUR and self.since > MINUTES_KEPT:
            raise ConfigurationError(
                f"--step must be 1h or longer if --since is over {MINUTES_KEPT.days}d, because older counts are by the hour, not {_span(self.step)}"
            )
        if self.since / self.step > _MOST_STEPS:
            raise ConfigurationError(
                f"--step {_span(self.step)} divides {_span(self.since)} into more than {_MOST_STEPS:,} parts; give a longer step"
            )


def _parse_by(texts: Sequence[str]) -> list[str]:
    """Parse the names in `--by`, which may be lists with commas. Raises typer.BadParameter."""
    names = [name.strip() for text in texts for name in text.split(",")]
    for name in names:
        if name not in {"queue", "task"}:
            raise typer.BadParameter(f"{name!r} is neither queue nor task", param_hint="'--by'")
    return [name for name in ("queue", "task") if name in names]


def _show_ended(connection: sa.Connection, asked: _Question, *, json: bool) -> None:
    """Print how jobs ended, as a table or as JSON."""
    begin, now = connection.execute(
        sa.select(sa.func.date_trunc("minute", sa.func.now() - asked.since), sa.func.now())
    ).one()  # as `sum_stats` begins
    statement = sum_stats(
        since=asked.since, by=cast(Any, asked.by), queues=asked.queues, tasks=asked.tasks, step=asked.step
    )
    rows = connection.execute(statement).all()
    all_figures = [Figures.of([row], _seconds(row, asked.step, begin, now)) for row in rows]
    keys = [*(["at"] if asked.step is not None else []), *asked.by]
    if json:
        lines = [_as_json(row, figures, keys) for row, figures in zip(rows, all_figures, strict=True)]
        print_json({"since": begin, "until": now, "by": asked.by, "rows": lines})
        return
    if not any(sum(figures.counts.values()) for figures in all_figures):
        note(f"workers have counted no such jobs in the last {_span(asked.since)}")
        return
    names = named(all_figures)
    form = "%H:%M" if asked.since < timedelta(days=1) else "%m-%d %H:%M"
    table: list[list[str]] = []
    for row, figures in zip(rows, all_figures, strict=True):
        values = (row.at.astimezone().strftime(form) if key == "at" else getattr(row, key) for key in keys)
        table.append([*values, *_cells(figures, names)])
    styles = [""] * len(rows)
    if asked.by and asked.step is None and len(rows) > 1:
        total = Figures.of(rows, (now - begin).total_seconds())
        table.append(["(all)", *[""] * (len(keys) - 1), *_cells(total, names)])
        styles.append("bold")
    print_table(list(_columns(names, keys)), table, styles=styles, rule=False)
    note(f"since {begin.astimezone():%Y-%m-%d %H:%M %Z} · /min: jobs that ended · up to 10 s behind")


def _seconds(row: Any, step: timedelta | None, begin: datetime, now: datetime) -> float:
    """The time that a row covers; the first step may have begun earlier, and the last may not be over."""
    if step is not None:
        begin, now = max(begin, row.at), min(now, row.at + step)
    return float((now - begin).total_seconds())


def _columns(names: Sequence[str], keys: Sequence[str]) -> Iterator[Column]:
    for key in keys:
        shortened = last_part if key == "task" else None
        yield Column("since") if key == "at" else Column(key, wide=True, least=10, shortened=shortened)
    for name in names:
        yield Column(name, "right", optional=name not in ALWAYS)
    yield Column("/min", "right")
    # With two columns of keys, 80 characters have no room for medians, either.
    optional = {"mean", "p99", *(["p50"] if len(keys) > 1 else [])}
    for kind in ("run", "wait"):
        for name in ("mean", *QUANTILES):
            yield Column(f"{kind} {name}", "right", optional=name in optional)


def _cells(figures: Figures, names: Sequence[str]) -> list[str]:
    times: list[str] = []
    for quantile in (figures.run, figures.wait):
        for name in ("mean", *QUANTILES):
            seconds = quantile(name)
            times.append("" if seconds is None else duration(seconds) if name == "mean" else estimated(seconds))
    return [*(f"{figures.counts[name]:,}" for name in names), rate(figures.per_minute()), *times]


def _as_json(row: Any, figures: Figures, keys: Sequence[str]) -> dict[str, Any]:
    line: dict[str, Any] = {key: getattr(row, key) for key in keys} | figures.counts
    line["per_minute"] = figures.per_minute()
    for name in ("mean", *QUANTILES):
        line |= {f"run_{name}": figures.run(name), f"wait_{name}": figures.wait(name)}
    return line


def _span(time: timedelta) -> str:
    return age(time.total_seconds())


_over_time, _period = (partial(option, rich_help_panel="How jobs ended") for option in (typer.Option, duration_option))


def stats(
    config: Config,
    *,
    queue: Queues = [],  # noqa: B006  # Typer's
    lately: Annotated[
        timedelta | None,
        duration_option(
            help="Count jobs that ended within this time. Default: 1h. Not with --since.", show_default=False
        ),
    ] = None,
    since: Annotated[
        timedelta | None, _period(help="Show how jobs ended within this time: 5m, 1h, 7d; at most 90d.")
    ] = None,
    by: Annotated[
        list[str],
        _over_time(
            metavar="NAME", help="A line for each queue, task, or queue,task. Can be repeated.", show_default="queue"
        ),
    ] = [],  # noqa: B006
    task: Annotated[list[str], _over_time("--task", "-t", metavar="NAME", help="Of this task. Can be repeated.")] = [],  # noqa: B006
    step: Annotated[timedelta | None, _period(help="A line for each period of this length: 1m, 5m, 1h.")] = None,
    json: Json = False,
) -> None:
    """Count the jobs of each queue by status; with --since show how jobs ended, how long they ran and waited.

    Workers count how jobs end: by the minute for 7 days, by the hour for 90 days. The counts stay when the jobs are deleted.

    sa-jobqueue stats --lately 24h
    sa-jobqueue stats --since 1h --by task
    sa-jobqueue stats --since 6h --task shop.send_receipt --step 15m
    """
    if since is None:
        for option, given in (("--by", by), ("--task", task), ("--step", step)):
            if given:
                raise ConfigurationError(f"{option} needs --since, as in --since 1h")
        _show_counts(config, queue, timedelta(hours=1) if lately is None else lately, json=json)
        return
    if lately is not None:
        raise ConfigurationError("--lately and --since contradict each other: give one of them")
    asked = _Question(since, _parse_by(by) if by else ["queue"] if step is None else [], queue, task, step)
    with transaction(config) as connection:
        _show_ended(connection, asked, json=json)


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
    styles = [""] * len(rows)
    if len(rows) > 1:
        ages = [row["oldest_due_age"] for row in rows if row["oldest_due_age"] is not None]
        totals = {name: sum(row[name] for row in rows) for name in names if name != "oldest_due_age"}
        rows.append(totals | {"queue": "(all)", "oldest_due_age": max(ages, default=None)})
        styles.append("bold")
    columns = [Column("oldest due" if name == "oldest_due_age" else name, "right") for name in names]
    lines = [
        [row["queue"], *(age(row[name]) if name == "oldest_due_age" else f"{row[name]:,}" for name in names)]
        for row in rows
    ]
    print_table([Column("queue", wide=True), *columns], lines, styles=styles)
    note(f"completed, failed, cancelled: within the last {age(lately.total_seconds())}")


# ---- The worker processes: `workers`, and `drain`, which asks some to end.


def workers(config: Config, *, json: Json = False) -> None:
    """List the worker processes, with their memory and the lag of their event loops.

    A worker is stale (killed, frozen, or cut off) if it was not seen for 60 s or has let a lease run out. A worker is held back
    if it claims less because the database exceeds a threshold (work --max-lock-waits and others). --json also has the version
    of the schema that each worker expects, and its lease.
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
        if row.wanted:
            note(f"{row.host}:{row.pid}: {slots_wanted(row.wanted)}")


def set_slots_(
    config: Config,
    name: Annotated[
        str, typer.Argument(metavar="WORKER", help="The worker's HOST:PID, as `workers` shows it, or its id.")
    ],
    *,
    queue: Annotated[
        list[str],
        typer.Option(
            "--queue",
            "-q",
            metavar="NAME=SLOTS",
            help="The slots of a queue: the jobs of the queue that run at once. A new queue is added; 0 removes a queue. Can be "
            "repeated.",
        ),
    ],
    wait: Annotated[bool, typer.Option(help="Wait until the worker has the slots, or refuses them.")] = True,
    json: Json = False,
) -> None:
    """Set the slots of a running worker, until its process ends: a process that takes its place begins with its own options.

    Running jobs go on. The worker notices within 20 s. It refuses more slots than the database or its pool has connections for. Exit code
    1: the worker refused, or has not answered yet; in the second case it may still change its slots.

    sa-jobqueue workers set web-1:4711 --queue mail=20
    sa-jobqueue workers set web-1:4711 --queue bulk=0 --queue mail=5
    """  # fmt: skip
    slots = queues_of(queue, slots=None)
    engine = open_engine(config)
    with transaction(config, engine) as connection:
        found = _worker_named(connection, name)
        if not connection.scalars(set_slots(WorkerRow.id == found.id, slots=slots)).all():
            raise ConfigurationError(f"{name} drains, or has left; `sa-jobqueue workers` lists the workers")
        who = connection.scalar(sa.select(sa.literal_column("session_user")))
        target = {"worker": [str(found.id)], "queue": [*slots], "slots": [str(limit) for limit in slots.values()]}
        connection.execute(record_action("set_slots", who=str(who), target=target, count=1))
    seen: Any = found
    until = monotonic() + min((found.lease or 60.0) / 3, 20.0) + _MARGIN
    answer = "asked"
    while wait and answer == "asked" and monotonic() < until:
        sleep(_LOOK_EVERY)
        with engine.connect() as connection:
            seen = connection.execute(list_workers().where(WorkerRow.id == found.id)).one_or_none()
        answer = _answer(seen, slots)
    if json:
        row = {name: getattr(seen, name, None) for name in ("id", "host", "pid", "slots", "wanted")}
        print_json({"action": "set", "answer": answer, **row})
    elif answer == "set":
        say(
            f"{name} serves {' '.join(f'{queue}={limit}' for queue, limit in seen.slots.items())}, until its process ends"
        )
    elif answer == "refused":
        note(f"{name}: {slots_wanted(seen.wanted)}")
    elif answer == "left":
        note(f"{name} has left")
    elif answer == "replaced":
        note(f"{name}: another request has replaced this request; `sa-jobqueue workers` shows the wanted slots")
    elif not wait:
        say(f"asked {name} for {slots_wanted({'slots': slots}).removesuffix(' wanted')}; it notices within 20 s")
    else:
        note(
            f"{name} has not answered yet; it changes its slots when it next renews its row. `sa-jobqueue workers` shows the wanted slots"
        )
    if wait and answer != "set":
        raise typer.Exit(1)


def _worker_named(connection: sa.Connection, name: str) -> Any:
    """The row of the worker with this name or id. Raises ConfigurationError if there is none, or are several, or if it is stale."""
    try:
        where = WorkerRow.id == UUID(name)
    except ValueError:
        where = is_worker(name)
    found = connection.execute(list_workers().where(where)).all()
    live = [row for row in found if not row.stale]
    if len(live) == 1:
        return live[0]
    rows = live or found or connection.execute(list_workers().limit(10)).all()
    shown = "; ".join(f"{row.host}:{row.pid} ({row.id}, {' '.join(row.queues)})" for row in rows)
    if len(live) > 1:
        raise ConfigurationError(f"{len(live)} workers are named {name!r}; give the id of one: {shown}")
    if found:
        raise ConfigurationError(f"{name} is stale: it was killed, is frozen, or is cut off: {shown}")
    raise ConfigurationError(f"there is no worker {name!r}; {f'there are: {shown}' if shown else 'no worker runs'}")


def _answer(row: Any, slots: Mapping[str, int]) -> str:
    """The state of a request for these slots, by the worker's row: "asked", "set", "refused", "replaced" by a later request, or "left"
    if there is no row.
    """
    if row is None:
        return "left"
    if row.wanted is not None and "refused" in row.wanted:
        return "refused"
    answer, there = ("set", row.slots) if row.wanted is None else ("asked", row.wanted.get("slots"))
    return answer if all((there or {}).get(name, 0) == limit for name, limit in slots.items()) else "replaced"


def drain(
    config: Config,
    names: Annotated[
        list[str],
        typer.Argument(metavar="WORKER", help="HOST:PID as `workers` shows it, or a HOST: all of its workers."),
    ],
    *,
    json: Json = False,
) -> None:
    """Ask worker processes to drain, as SIGTERM does, from any machine: they claim no more jobs, let running jobs finish, and end.

    A worker notices within 20 s. Whatever started the worker, such as `work --processes` or systemd, may start a replacement.

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
        note("no such worker, or all were asked before; `sa-jobqueue workers` lists them")
    if not asked:
        raise typer.Exit(1)


def _state(row: Any) -> str:
    if row.stale:
        return "stale"
    if row.drain_requested_at is not None:
        return "draining"
    return "held back" if row.pressure else "live"
