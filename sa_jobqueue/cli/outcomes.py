"""What jobs came to: `stats --since`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import sqlalchemy as sa
import typer

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.health.figures import ALWAYS, QUANTILES, Figures, named
from sa_jobqueue.statements import sum_stats
from sa_jobqueue.statements.stats import HOURS_KEPT, MINUTES_KEPT

from .output import Column, age, duration, estimated, last_part, note, print_json, print_table, rate

__all__ = ["Question", "parse_by", "show_outcomes"]

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
