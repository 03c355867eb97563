"""What jobs came to within a window of time, step by step: for charts and sparklines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import func, select

from ..health.figures import Figures, named
from ..statements import sum_stats
from ..statements.stats import By
from .kept import Kept
from .look import Look
from .refusals import BadInput

__all__ = ["WINDOWS", "Activity", "Window", "read_activity", "window_of"]

#: The colour of each outcome.
_COLOURS = MappingProxyType(
    {
        "completed": "--good", "retried": "--warn", "failed": "--bad", "cancelled": "--stop", "snoozed": "--busy", "released": "--soft",
        "rescued": "--accent", "lost": "--wait",
    }
)  # fmt: skip
#: Workers write what they have counted every 10 s, so the running step is some seconds short; and one that has just begun says little.
_LATE, _LEAST = 5.0, 30.0
_BY_QUEUE: tuple[By, ...] = ("queue",)


@dataclass(frozen=True, slots=True)
class Window:
    """How far back, in which steps, and for how long an answer is as good as another: the further back, the less changes."""

    back: timedelta
    step: timedelta
    kept: Kept[tuple[datetime, Sequence[Any]]]


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
    """Figures of each step, of all queues together and of each."""

    at: Sequence[datetime]
    """When each step began."""
    all: Figures
    steps: Sequence[Figures]
    by_queue: Mapping[str, Sequence[Figures]]

    @property
    def outcomes(self) -> list[str]:
        """Those to show."""
        return named([self.all])

    def throughput(self) -> dict[str, Any]:
        """The chart of outcomes per minute, one above the other."""
        series = [
            {"label": name, "colour": _COLOURS[name], "values": [round(one.per_minute(name), 2) for one in self.steps]}
            for name in self.outcomes
        ]
        return {"at": self._seconds(), "series": series, "stacked": True, "unit": "/min"}

    def waits(self) -> dict[str, Any]:
        """The chart of how long jobs had been due."""
        colours = {"p50": "--good", "p95": "--busy", "p99": "--warn"}
        series = [
            {"label": name, "colour": colour, "values": [one.wait(name) for one in self.steps]}
            for name, colour in colours.items()
        ]
        return {"at": self._seconds(), "series": series, "unit": " s"}

    def ended(self, queue: str) -> list[float]:
        """Jobs of a queue that ended, per minute, in each step."""
        found = self.by_queue.get(queue, ())
        return [one.per_minute() for one in found] or [0.0] * len(self.at)

    def _seconds(self) -> list[int]:
        return [int(one.timestamp()) for one in self.at]


def window_of(look: Look) -> str:
    """The window that the viewer asks for. Raises BadInput."""
    name = look.query.one("window", _DEFAULT)
    if name not in WINDOWS:
        raise BadInput("window", name, f"one of {', '.join(WINDOWS)}")
    return name


def read_activity(look: Look, name: str) -> Activity:
    """What the jobs of the viewer's queues came to within this window."""
    window, stat = WINDOWS[name], look.options.beside.stat
    connection = look.connection

    def read() -> tuple[datetime, Sequence[Any]]:
        now: Any = connection.scalar(select(func.now()))
        return now, connection.execute(sum_stats(since=window.back, by=_BY_QUEUE, step=window.step, stat=stat)).all()

    now, rows = window.kept.get(connection, look.job, read)
    if look.queues is not None:
        rows = [row for row in rows if row.queue in look.queues]
    starts = _starts(now, window)
    length = window.step.total_seconds()
    seconds = [min(length, (now - start).total_seconds() - _LATE) for start in starts]
    places = {start: place for place, start in enumerate(starts)}
    of_step: list[list[Any]] = [[] for _ in starts]
    of_queue: dict[str, list[list[Any]]] = defaultdict(lambda: [[] for _ in starts])
    for row in rows:
        place = places.get(row.at)
        if place is not None:
            of_step[place].append(row)
            of_queue[row.queue][place].append(row)
    return Activity(
        starts,
        Figures.of((row for step in of_step for row in step), sum(seconds)),
        [Figures.of(some, length) for some, length in zip(of_step, seconds, strict=True)],
        {
            queue: [Figures.of(some, length) for some, length in zip(steps, seconds, strict=True)]
            for queue, steps in of_queue.items()
        },
    )


def _starts(now: datetime, window: Window) -> list[datetime]:
    """When the steps of a window began: all that are whole, and the last one once it says something."""
    length = window.step.total_seconds()
    last = now.timestamp() // length * length
    first = -(-(now - window.back).timestamp() // length) * length
    if now.timestamp() - last < _LEAST:
        last -= length
    return [datetime.fromtimestamp(first + number * length, UTC) for number in range(int((last - first) // length) + 1)]
