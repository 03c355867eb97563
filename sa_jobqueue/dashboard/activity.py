"""How jobs ended within a window of time, step by step, for charts and sparklines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from ..health.read import ENDS, Figures, named
from ..rules.lifecycle import COUNTED
from ..rules.tally import BOUNDS, BUCKETS, RANGES
from ..sql.readings.stats import By
from ..statements import sum_stats
from .refusals import BadInput
from .request import PageContext
from .shared import Kept

#: The colour of each outcome.
_COLOURS = MappingProxyType(
    {
        "completed": "--good", "retried": "--warn", "failed": "--bad", "cancelled": "--stop", "snoozed": "--busy", "released": "--soft",
        "rescued": "--accent", "lost": "--wait",
    }
)  # fmt: skip
#: Workers write their counts every 10 s, so that the current step lacks some seconds, and a step that has just begun is not meaningful.
_LATE, _LEAST = 5.0, 30.0
#: The values of each step in charts.
_OF_STEP = (*COUNTED, "waits")


@dataclass(frozen=True, slots=True)
class _Sums:
    """The time of the reading, the sums, and the ended jobs of each queue or task in each step."""

    now: datetime
    sums: Sequence[Any]
    ended: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Window:
    """The length of a window and of its steps, and the time for which an answer is kept: long windows change little."""

    back: timedelta
    step: timedelta
    kept: Kept[_Sums]


#: By the name that an address has.
WINDOWS: Mapping[str, Window] = MappingProxyType(
    {
        "5m": Window(timedelta(minutes=5), timedelta(minutes=1), Kept(1.0)),
        "1h": Window(timedelta(hours=1), timedelta(minutes=1), Kept(2.0)),
        "24h": Window(timedelta(hours=24), timedelta(minutes=15), Kept(15.0)),
        "7d": Window(timedelta(days=7), timedelta(hours=2), Kept(60.0)),
    }
)
_DEFAULT = "1h"


@dataclass(frozen=True, slots=True)
class Activity:
    """Figures of each step, and of all of them together."""

    at: Sequence[datetime]
    """When each step began."""
    all: Figures
    steps: Sequence[Figures]
    by_queue: Mapping[str, Sequence[float]]
    """Jobs that ended, per minute, in each step."""

    @property
    def outcomes(self) -> list[str]:
        """The outcomes to show."""
        return named([self.all])

    def throughput(self) -> dict[str, Any]:
        """The stacked chart of outcomes per minute."""
        series = [
            {"label": name, "colour": _COLOURS[name], "values": [round(one.per_minute(name), 2) for one in self.steps]}
            for name in self.outcomes
        ]
        return {"at": self._seconds(), "series": series, "stacked": True, "unit": "/min"}

    def waits(self) -> dict[str, Any]:
        """The chart of the time that jobs had been due."""
        return self._quantiles(Figures.wait)

    def runs(self) -> dict[str, Any]:
        """The chart of the time that handlers took. Only with `of` in `read_activity`."""
        return self._quantiles(Figures.run)

    def _quantiles(self, value: Callable[[Figures, str], float | None]) -> dict[str, Any]:
        # Dashes, so that lines on top of each other stay visible.
        lines = {"p50": ("--good", ()), "p95": ("--busy", (10, 5)), "p99": ("--warn", (3, 5))}
        series = [
            {"label": name, "colour": colour, "dash": dash, "values": [value(step, name) for step in self.steps]}
            for name, (colour, dash) in lines.items()
        ]
        return {"at": self._seconds(), "series": series, "unit": " s", "open": BOUNDS[-1]}

    def ended(self, queue: str) -> Sequence[float]:
        """Jobs of a queue that ended, per minute, in each step."""
        return self.by_queue.get(queue) or [0.0] * len(self.at)

    def _seconds(self) -> list[int]:
        return [int(one.timestamp()) for one in self.at]


def window_of(context: PageContext, default: str = _DEFAULT) -> str:
    """The requested window. Raises BadInput."""
    name = context.query.one("window", default)
    if name not in WINDOWS:
        raise BadInput("window", name, f"one of {', '.join(WINDOWS)}")
    return name


def read_activity(context: PageContext, name: str, *, of: tuple[By, str] | None = None) -> Activity:
    """How the jobs of the viewer's queues ended within this window. `of`: only those of a queue or a task."""
    window = WINDOWS[name]
    values = _OF_STEP if of is None else (*_OF_STEP, "runs")
    key = (context.job, context.queues, "queue", of)
    found = window.kept.get(
        context.connection, key, lambda: _read(context, window, "queue", of, step=window.step, values=values)
    )
    length = window.step.total_seconds()
    starts, ended = _ended(found, window, "queue")
    places = {start: place for place, start in enumerate(starts)}
    rows: list[list[Any]] = [[] for _ in starts]
    for row in found.sums:
        if row.at in places:
            rows[places[row.at]].append(row)
    return Activity(
        starts,
        _figures([row for some in rows for row in some], sum(_seconds(found, starts, window))),
        [_figures(some, length) for some in rows],
        ended,
    )


def read_tasks(context: PageContext, name: str) -> list[tuple[str, Figures, Sequence[float]]]:
    """The tasks of the viewer's queues with jobs that ended within this window: name, figures, and jobs that ended per minute in each step."""
    window = WINDOWS[name]
    key = (context.job, context.queues, "task", None)
    found = window.kept.get(context.connection, key, lambda: _read(context, window, "task", by=("task",)))
    _, ended = _ended(found, window, "task")
    seconds = window.back.total_seconds()
    return [(row.task, Figures.of([row], seconds), ended[row.task]) for row in found.sums]


def _read(context: PageContext, window: Window, ended_by: By, of: tuple[By, str] | None = None, **sums: Any) -> _Sums:
    """Read the sums, and the jobs that ended, by queue or task."""
    now: Any = context.connection.scalar(sa.select(sa.func.now()))
    if context.queues is not None and not context.queues:
        return _Sums(now, (), ())
    asked: dict[str, Any] = {"since": window.back, "queues": sorted(context.queues or ()), "stat": context.tables.stat}
    if of is not None:
        asked[f"{of[0]}s"] = [of[1]]
    ended = sum_stats(**asked, step=window.step, by=(ended_by,), values=ENDS)
    return _Sums(
        now, context.connection.execute(sum_stats(**asked, **sums)).all(), context.connection.execute(ended).all()
    )


def _ended(found: _Sums, window: Window, by: By) -> tuple[list[datetime], Mapping[str, Sequence[float]]]:
    """The starts of the steps; and of each queue or task the jobs that ended per minute in each step."""
    starts = _starts(found.now, window)
    places = {start: place for place, start in enumerate(starts)}
    seconds = _seconds(found, starts, window)
    ended: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(starts))
    for row in found.ended:
        if row.at in places:
            place = places[row.at]
            ended[getattr(row, by)][place] = (row.completed + row.failed + row.cancelled) * 60 / seconds[place]
    return starts, ended


def _seconds(found: _Sums, starts: Sequence[datetime], window: Window) -> list[float]:
    """The seconds of each step that are counted already."""
    length = window.step.total_seconds()
    return [min(length, (found.now - start).total_seconds() - _LATE) for start in starts]


def _figures(rows: Sequence[Any], seconds: float) -> Figures:
    """The figures of these rows."""
    counts = {name: sum(getattr(row, name) for row in rows) for name in COUNTED}
    waits = [sum(row.waits[number] for row in rows) for number in range(BUCKETS)]
    has_runs = any(hasattr(row, "runs") for row in rows)
    runs = [sum(row.runs[number] for row in rows) for number in range(BUCKETS)] if has_runs else ()
    return Figures(counts, seconds, 0.0, 0.0, runs, waits)


def _starts(now: datetime, window: Window) -> list[datetime]:
    """The start times of a window's steps: all complete steps, and the last step once it is meaningful."""
    length = window.step.total_seconds()
    last = now.timestamp() // length * length
    begin = (now - window.back).timestamp() // 60 * 60  # what is read begins with a whole minute
    first = -(-begin // length) * length
    if now.timestamp() - last < _LEAST:
        last -= length
    return [datetime.fromtimestamp(first + number * length, UTC) for number in range(int((last - first) // length) + 1)]


# ---- Small drawings, as the points and boxes of an SVG: without a style, which the policy of the pages does not let through.

_WIDE, _HIGH = 100.0, 20.0


def points(values: Sequence[float]) -> str:
    """The points of a line through these values, in a box of 100 by 20.

    >>> points([0, 2, 1])
    '0,19 50,1 100,10'
    """
    if not values:
        return ""
    most, apart = max([*values, 1e-9]), _WIDE / max(len(values) - 1, 1)
    return " ".join(
        f"{number * apart:.4g},{_HIGH - 1 - (_HIGH - 2) * value / most:.4g}" for number, value in enumerate(values)
    )


def bars(counts: Sequence[int]) -> list[tuple[float, float, int, float]]:
    """Of each bucket of a histogram from the first to the last that has something: its bounds in seconds, its count, and its width in percent."""
    used = [number for number, count in enumerate(counts) if count]
    if not used:
        return []
    most = max(counts)
    return [(*RANGES[number], counts[number], counts[number] * 100 / most) for number in range(used[0], used[-1] + 1)]
