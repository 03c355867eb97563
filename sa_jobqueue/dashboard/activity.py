"""How jobs ended within a window of time, step by step, for charts and sparklines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeAlias

from ..health.backlog import LEAVES, Depth, Flow
from ..health.read import ENDS, Figures, named
from ..rules.lifecycle import COUNTED
from ..rules.tally import BOUNDS, BUCKETS, RANGES
from ..sql.readings.backlog import backlog_in_steps
from ..sql.readings.stats import HOURS_KEPT, MINUTES_KEPT, By
from ..statements import sum_stats
from .refusals import BadInput
from .request import PageContext
from .shared import Kept

#: The queue or task whose jobs alone count; None: all count.
Of: TypeAlias = tuple[By, str] | None
#: A label, a colour, and a value for each step.
_Line: TypeAlias = tuple[str, str, list[Any]]
#: The colour of each outcome.
_COLOURS = {
    "completed": "--good", "retried": "--warn", "failed": "--bad", "cancelled": "--stop", "snoozed": "--busy", "suspended": "--busy", "released": "--soft",
    "rescued": "--accent", "lost": "--wait",
}  # fmt: skip
#: The colours of the largest queues or tasks in a chart, and of all others.
_OF_GROUPS, _OF_OTHERS = ("--busy", "--warn", "--stop", "--good", "--accent"), "--wait"
#: Workers write their counts every 10 s, so that the current step lacks some seconds, and a step that has just begun is not meaningful.
_LATE, _LEAST = 5.0, 30.0
#: The values of each step in charts.
_OF_STEP = (*COUNTED, "waits")


@dataclass(frozen=True, slots=True)
class Window:
    """The last `back`, or `back` before `until`, in steps. `kept`: answers, which change little in long windows."""

    name: str
    """The name in an address; "" for a time that the viewer has chosen."""
    back: timedelta
    step: timedelta
    kept: Kept[Activity]
    until: datetime | None = None


#: By the name that an address has.
WINDOWS: Mapping[str, Window] = {
    "5m": Window("5m", timedelta(minutes=5), timedelta(minutes=1), Kept(1.0)),
    "1h": Window("1h", timedelta(hours=1), timedelta(minutes=1), Kept(2.0)),
    "24h": Window("24h", timedelta(hours=24), timedelta(minutes=15), Kept(15.0)),
    "7d": Window("7d", timedelta(days=7), timedelta(hours=2), Kept(60.0)),
}
_DEFAULT = "1h"
#: The step of a time that a viewer has chosen, by its greatest length; of a time that is no longer kept by the minute; and answers.
_STEPS = {
    timedelta(hours=2): timedelta(minutes=1), timedelta(hours=36): timedelta(minutes=15), timedelta(days=14): timedelta(hours=2),
    timedelta(days=91): timedelta(days=1),
}  # fmt: skip
_OLD, _SHORTEST = timedelta(hours=2), timedelta(minutes=5)
_CHOSEN: Kept[Activity] = Kept(15.0)


@dataclass(frozen=True)
class Activity:
    """What arrived within a window, waited and left, step by step."""

    starts: Sequence[datetime]
    """When each step began."""
    seconds: Sequence[float]
    """The seconds of each step that are counted."""
    by: By | None
    """What the charts tell apart; None: outcomes."""
    sums: Sequence[Any] = ()
    """Rows of `sum_stats`: how jobs ended."""
    ends: Sequence[Any] = ()
    """Rows of `sum_stats`: jobs that ended, by queue or task."""
    depths: Sequence[Mapping[str, Depth] | None] = ()
    """Of each queue, before the first step and at the end of each; None: not counted."""

    @cached_property
    def _rows(self) -> Sequence[Sequence[Any]]:
        rows: dict[datetime, list[Any]] = {start: [] for start in self.starts}
        for row in self.sums:
            rows.get(row.at, []).append(row)
        return list(rows.values())

    @cached_property
    def all(self) -> Figures:
        """The figures of all steps together."""
        return _figures([row for rows in self._rows for row in rows], sum(self.seconds))

    @cached_property
    def steps(self) -> Sequence[Figures]:
        """The figures of each step."""
        return [_figures(rows, seconds) for rows, seconds in zip(self._rows, self.seconds, strict=True)]

    def flow(self, *, without: Collection[str] = ()) -> Flow:
        """What arrived in the queues, waited there and left; `without` the backlog of these queues."""
        depths = [
            None if queues is None else Depth.of(queues[name] for name in queues if name not in without)
            for queues in self.depths
        ]
        return Flow(self.seconds, depths, [sum(step.counts[name] for name in LEAVES) for step in self.steps])

    def ended(self, by: By) -> Mapping[str, list[Any]]:
        """Jobs that ended, per minute, in each step, by queue or task."""
        if by in self._ended:
            return self._ended[by]
        places = {start: place for place, start in enumerate(self.starts)}
        found: dict[str, list[int]] = defaultdict(lambda: [0] * len(places))
        for row in self.ends:
            if row.at in places:
                found[getattr(row, by)][places[row.at]] += row.completed + row.failed + row.cancelled
        self._ended[by] = {name: self._rates(numbers) for name, numbers in found.items()}
        return self._ended[by]

    @cached_property
    def _ended(self) -> dict[By, Mapping[str, list[Any]]]:
        return {}

    def _rates(self, numbers: Sequence[float | None]) -> list[Any]:
        """Numbers of each step, per minute."""
        counted = zip(numbers, self.seconds, strict=True)
        return [number and round(number * 60 / seconds, 2) for number, seconds in counted]

    def throughput(self) -> dict[str, Any]:
        """The stacked chart of outcomes per minute, or of jobs that ended, with a line of arrivals."""
        lines = [
            (end, _COLOURS[end], self._rates([step.counts[end] for step in self.steps])) for end in named([self.all])
        ]
        if self.by is not None:
            lines = self._largest(self.ended(self.by))
        arrived = self._rates(self.flow().arrived)
        is_known = any(number is not None for number in arrived)
        lines += [("in", "--ink", arrived)] * is_known
        return self._chart(lines, stacked=len(lines) - is_known, unit="/min")

    def backlog(self) -> dict[str, Any]:
        """The stacked chart of due and running jobs at the end of each step, or by queue. `least`: whether there were more."""
        depths = self.flow().depths[1:]
        colours = {"running": "--busy", "due": "--warn"}
        lines = [
            (name, colour, [depth and getattr(depth, name) for depth in depths]) for name, colour in colours.items()
        ]
        if self.by == "queue":
            lines = self._largest(self._held)
        least = [depth is not None and depth.more for depth in depths]
        return self._chart(lines, stacked=len(lines), unit="", least=least)

    @cached_property
    def _held(self) -> Mapping[str, list[Any]]:
        """Due and running jobs of each queue at the end of each step."""
        counted = self.depths[1:]
        names = {name for queues in counted if queues for name in queues if name}
        return {name: [queues and queues.get(name, Depth()).held for queues in counted] for name in names}

    def _largest(self, groups: Mapping[str, list[Any]]) -> list[_Line]:
        """The largest queues or tasks of both charts, in each with the same colour, and all others together."""
        sums: Counter[str] = Counter()
        for values in (self.ended(self.by or "queue"), self._held if self.by == "queue" else {}):
            sums.update({name: sum(number or 0 for number in values[name]) for name in values})
        names = [name for name, _ in sums.most_common()]
        found = [
            (name, colour, groups[name]) for name, colour in zip(names, _OF_GROUPS, strict=False) if name in groups
        ]
        if others := [groups[name] for name in names[len(_OF_GROUPS) :] if name in groups]:
            totals = [None if None in values else sum(values) for values in zip(*others, strict=True)]
            found.append((f"others: {len(others)}", _OF_OTHERS, totals))
        return found

    def waits(self) -> dict[str, Any]:
        """The chart of the time that jobs had been due."""
        return self._quantiles(Figures.wait)

    def runs(self) -> dict[str, Any]:
        """The chart of the time that handlers took. Only with `of` in `read_activity`."""
        return self._quantiles(Figures.run)

    def _quantiles(self, value: Callable[[Figures, str], float | None]) -> dict[str, Any]:
        colours = {"p50": "--good", "p95": "--busy", "p99": "--warn"}
        lines = [(name, colour, [value(step, name) for step in self.steps]) for name, colour in colours.items()]
        # Dashes, so that lines on top of each other stay visible.
        return self._chart(lines, unit=" s", open=BOUNDS[-1], dashes=[(), (10, 5), (3, 5)])

    def _chart(self, lines: Sequence[_Line], **values: Any) -> dict[str, Any]:
        series = [{"label": label, "colour": colour, "values": numbers} for label, colour, numbers in lines]
        return {"at": [int(start.timestamp()) for start in self.starts], "series": series, **values}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The numbers of each step, for programs."""
        shown = zip(self.starts, self.flow().arrived, self.steps, self.flow().depths[1:], strict=True)
        return [{"at": at, "in": arrived, "figures": step, "depth": depth} for at, arrived, step, depth in shown]


def window_of(context: PageContext, default: str = _DEFAULT) -> Window:
    """The requested window. Raises BadInput."""
    if context.query.one("from") or context.query.one("to"):
        return _chosen(context)
    name = context.query.one("window", default)
    if name not in WINDOWS:
        raise BadInput("window", name, f"one of {', '.join(WINDOWS)}")
    return WINDOWS[name]


def _chosen(context: PageContext) -> Window:
    """The steps of the chart for the time that the viewer has chosen. A short time is made longer. Raises BadInput."""
    now, begin, until = context.now(), context.query.moment("from"), context.query.moment("to")
    end = min(until or now, now)
    if begin is None or begin < now - HOURS_KEPT or begin > end:
        raise BadInput("from", context.query.one("from"), "a time for which there are statistics, before the end")
    begin = min(begin, end - _SHORTEST)
    step = next(step for most, step in _STEPS.items() if end - begin <= most)
    length = (max(step, _OLD) if begin < now - MINUTES_KEPT else step).total_seconds()
    first, last = begin.timestamp() // length, -(-end.timestamp() // length)
    back, step = timedelta(seconds=(last - first) * length), timedelta(seconds=length)
    return Window("", back, step, _CHOSEN, datetime.fromtimestamp(last * length, UTC))


def grouping_of(context: PageContext, *names: By) -> By | None:
    """What the charts tell apart, one of `names`; None: outcomes. Raises BadInput."""
    asked: Any = context.query.one("by")
    if asked not in ("", *names):
        raise BadInput("by", asked, f"one of {', '.join(names)}")
    return asked or None


def read_activity(
    context: PageContext, window: Window, *, of: Of = None, by: By | None = None, now: datetime | None = None
) -> Activity:
    """What arrived in the viewer's queues and how their jobs ended within this window. `of`: only those of a queue or a task. `by`: what the
    charts tell apart. `now`: the time, if it is known.
    """
    values = _OF_STEP if of is None else (*_OF_STEP, "runs")
    keys: tuple[By, ...] = ("queue", "task") if by == "task" else ("queue",)
    return _kept(context, window, keys, of, by, at=now, step=window.step, values=values)


def read_tasks(context: PageContext, window: Window) -> list[tuple[str, Figures, Sequence[float]]]:
    """The tasks of the viewer's queues with jobs that ended within this window: name, figures, and jobs that ended per minute in each step."""
    found = _kept(context, window, ("task",), None, "task", by=("task",))
    ended, seconds = found.ended("task"), window.back.total_seconds()
    return [(row.task, Figures.of([row], seconds), ended.get(row.task, ())) for row in found.sums]


def _kept(
    page: PageContext, window: Window, keys: tuple[By, ...], of: Of, shown_by: By | None, *, at: datetime | None = None, **sums: Any,
) -> Activity:  # fmt: skip
    def read(context: PageContext) -> Activity:
        now, tables = (at if context is page else None) or context.now(), context.tables
        end = window.until or now
        begin, end = end - window.back, min(end, now)
        starts, length = _starts(begin, end, window), window.step.total_seconds()
        late = _LATE if end == now else 0.0
        seconds = [min(length, (end - start).total_seconds() - late) for start in starts]
        counted = [starts[0] - window.step, *starts]
        if context.queues is not None and not context.queues:
            return Activity(starts, seconds, shown_by, depths=[None for _ in counted])
        asked: dict[str, Any] = {"since": now - begin, "queues": sorted(context.queues or ()), "stat": tables.stat}
        if of is not None:
            asked[f"{of[0]}s"] = [of[1]]
        both: Any = sum_stats(**asked, **sums), sum_stats(**asked, step=window.step, by=keys, values=ENDS)
        ended, ends = [context.connection.execute(each.where(tables.stat.at < end)).all() for each in both]
        depths: dict[datetime, dict[str, Depth]] = defaultdict(dict)
        if "queue" in keys and (of is None or of[0] == "queue"):  # a task has none
            times: Any = {"begin": counted[0], "until": counted[-1], "step": window.step}
            statement = backlog_in_steps(**times, queues=asked["queues"], backlog=tables.backlog)
            for row in context.connection.execute(statement):
                depths[row.step][row.queue] = Depth(row.due, row.running, row.oldest, row.more)
        return Activity(starts, seconds, shown_by, ended, ends, [depths.get(start) for start in counted])

    key = (window.back, window.until, page.job, page.queues, keys, of, shown_by)
    return window.kept.get_stale(page, key, read)


def _figures(rows: Sequence[Any], seconds: float) -> Figures:
    """The figures of these rows."""
    counts = {name: sum(getattr(row, name) for row in rows) for name in COUNTED}
    waits = [sum(row.waits[number] for row in rows) for number in range(BUCKETS)]
    has_runs = any(hasattr(row, "runs") for row in rows)
    runs = [sum(row.runs[number] for row in rows) for number in range(BUCKETS)] if has_runs else ()
    return Figures(counts, seconds, 0.0, 0.0, runs, waits)


def _starts(begin: datetime, end: datetime, window: Window) -> list[datetime]:
    """The start times of a window's steps: all complete steps, and the last step once it is meaningful."""
    length = window.step.total_seconds()
    last = end.timestamp() // length * length
    first = -(-(begin.timestamp() // 60 * 60) // length) * length  # what is read begins with a whole minute
    if end.timestamp() - last < _LEAST:
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
