"""A schedule's rule: a cron expression in a time zone, or an interval. It is stored as text.

>>> every(300).expression
'every 300 s'
>>> rule_of("every 300 s") == every(300)
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ..errors import OptionError
from .retry import Duration, checked_duration

#: The shortest interval, in seconds.
_SHORTEST = 1.0
#: Names for cron expressions, as cron itself knows them.
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EXAMPLE = (
    'a cron expression such as "30 7 * * mon-fri" (minute, hour, day of month, month, day of week), or every(...)'
)
#: To try an expression, any day will do.
_SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)
#: Back from a moment, the first of these that has a tick in it has the last tick before the moment.
_WINDOWS = (timedelta(minutes=2), timedelta(days=1), timedelta(days=32), timedelta(days=367), timedelta(days=366 * 50))


@dataclass(frozen=True, slots=True)
class Every:
    """A tick each `seconds`, counted from when the schedule was made. Made by `every`."""

    seconds: float

    @property
    def expression(self) -> str:
        """The text that is stored: "every 300 s"."""
        return f"every {int(self.seconds) if self.seconds.is_integer() else self.seconds!r} s"

    def after(self, moment: datetime) -> datetime:
        """The first tick after `moment`."""
        return moment + timedelta(seconds=self.seconds)

    def count(self, first: datetime, until: datetime, *, most: int) -> int:
        """The number of ticks from `first` to `until`, both included; at most `most`."""
        return min(self._steps(first, until) + 1, most) if first <= until else 0

    def last(self, first: datetime, until: datetime) -> datetime:
        """The last tick up to `until`, which is included; `first` is a tick before it."""
        return first + timedelta(seconds=self.seconds) * self._steps(first, until)

    def first_from(self, first: datetime, moment: datetime) -> datetime:
        """The first tick at `moment` or later; `first` is a tick."""
        if first >= moment:
            return first
        at = self.last(first, moment)
        return at if at == moment else self.after(at)

    def _steps(self, first: datetime, until: datetime) -> int:
        return (until - first) // timedelta(seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Cron:
    """The times that a cron expression names in a zone. Made by `rule_of`.

    Where a clock is put forward, a time of the day that is skipped comes with the next moment there is. Where it is put back, a
    time of the day comes once, and "every hour" or "every minute" goes on as time does: as in Debian's cron.
    """

    expression: str
    timezone: str = "UTC"

    @property
    def in_words(self) -> str:
        """As in "At 07:30 on Monday through Friday"."""
        return CronSim(self._fields, _SOME_DAY).explain()

    @property
    def _fields(self) -> str:
        return _NAMED.get(self.expression, self.expression)

    def after(self, moment: datetime) -> datetime:
        """The first tick later than `moment`, in UTC.

        Raises OptionError if there is none in the next 50 years, and OverflowError if it would be later than the year 9999.
        """
        for at in self._ticks(moment):
            return at
        raise OptionError(
            f"the cron expression {self.expression!r} names no time in the 50 years after {moment:%Y-%m-%d}"
        )

    def count(self, first: datetime, until: datetime, *, most: int) -> int:
        """The number of ticks from `first` to `until`, both included; at most `most`."""
        if first > until:
            return 0
        number = 1
        for at in self._ticks(first):
            if number >= most or at > until:
                break
            number += 1
        return number

    def last(self, first: datetime, until: datetime) -> datetime:
        """The last tick up to `until`, which is included; `first` is a tick before it."""
        for window in _WINDOWS:
            start = max(until - window, first)
            found = first if start == first else None
            for at in self._ticks(start):
                if at > until:
                    break
                found = at
            if found is not None:
                return found
        return first

    def first_from(self, first: datetime, moment: datetime) -> datetime:
        """The first tick at `moment` or later; `first` is a tick."""
        return first if first >= moment else self.after(moment - timedelta(microseconds=1))

    def _ticks(self, moment: datetime) -> Iterator[datetime]:
        """The ticks later than `moment`, in UTC, ascending."""
        before = moment
        # In the hour that comes twice the library begins at its first coming, and in an hour that is skipped two times of the
        # day may fall together.
        for local in _Times(self._fields, moment.astimezone(_zone(self.timezone))):
            at = local.astimezone(UTC)
            if at > before:
                yield at
                before = at


class _Times(CronSim):
    """The times of an expression, also where a clock is not changed by an hour, or not at a full hour: the library's steps miss a time there."""

    def advance_hour(self) -> bool:
        """Go on to the begin of an hour that matches. Returns whether it went on."""
        if self.dt.hour in self.hours:
            return False
        # Clocks are changed at quarters of an hour, on the Chatham Islands at 2:45.
        step = 3_600 if self.dt.tzinfo in (None, UTC) else 900
        while self.dt.hour not in self.hours:
            self.tick(step - (60 * self.dt.minute + self.dt.second) % step)
            if self.dt.hour == 0:  # the day may not match
                break
        return True

    def advance_minute(self) -> bool:
        """Go on to a minute of this hour that matches, or to the begin of the next hour. Returns whether it went on."""
        if self.dt.minute in self.minutes:
            return False
        minute = min((later for later in self.minutes if later > self.dt.minute), default=60)
        self.tick(60 * (minute - self.dt.minute) - self.dt.second)
        return True


Rule: TypeAlias = Every | Cron


def every(interval: Duration) -> Every:
    """A rule for a tick each `interval`, in seconds or as a timedelta: at least a second, at most 100 years.

    The first tick is an interval after the schedule is made. Ticks are an interval apart also where clocks are changed.
    """
    seconds = checked_duration(interval, "every")
    if seconds < _SHORTEST:
        raise OptionError(f"every takes an interval of at least {_SHORTEST:g} second, not {interval!r}")
    return Every(seconds)


def rule_of(value: object, timezone: str = "UTC") -> Rule:
    """The rule that `value` is, or that it has as text; raise OptionError if it has no rule.

    `timezone`: the IANA name of the zone in which a cron expression is read. An interval has none.
    """
    if isinstance(value, Every | Cron):
        return value
    if not isinstance(value, str):
        raise OptionError(f"a schedule's rule must be {_EXAMPLE}, not {value!r}")
    return _parsed(value, timezone)


def expression_of(rule: Rule) -> str:
    """A rule as text, without its zone: `rule_of` reads it."""
    return rule.expression


@lru_cache(maxsize=4_096)
def _parsed(text: str, timezone: str) -> Rule:
    words = text.split()
    if words[:1] == ["every"]:
        return _parsed_interval(text, words)
    if len(words) == 6:  # some take the seconds first, others last
        raise OptionError(
            f"a schedule's rule must be {_EXAMPLE}, not {text!r}: it has six fields, and a cron expression has no seconds here; "
            "every(...) takes seconds"
        )
    zone = _zone(timezone)
    expression = " ".join(words)
    try:
        CronSim(_NAMED.get(expression.lower(), expression), _SOME_DAY.astimezone(zone))
    except CronSimError as error:
        raise OptionError(f"a schedule's rule must be {_EXAMPLE}, not {text!r}: {_reason(error)}") from None
    return Cron(expression.lower() if expression.startswith("@") else expression, timezone)


def _reason(error: CronSimError) -> str:
    reason = str(error)
    return f"the {reason[4:]} is wrong" if reason.startswith("Bad ") else reason.lower()


def _parsed_interval(text: str, words: list[str]) -> Every:
    try:
        seconds = float(words[1]) if len(words) == 3 and words[2] == "s" else math.nan
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise OptionError(
            f'an interval is given as every(300) or every(timedelta(minutes=5)), and stored as "every 300 s", not {text!r}'
        )
    return every(seconds)


@lru_cache(maxsize=1_024)
def _zone(name: str) -> tzinfo:
    if name == "UTC":  # needs no files
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # not known; not a name; a folder of zones
        raise OptionError(
            f"there is no time zone {name!r} here: give an IANA name such as 'Europe/Vienna' "
            "(where the system has no zones at all: install the package tzdata)"
        ) from error


# ---- The ticks of a rule in a range of time, as for a backfill.

_INSTANT = timedelta(microseconds=1)


def ticks_between(rule: Rule, start: datetime, end: datetime, *, anchor: datetime) -> Iterator[datetime]:
    """The ticks from `start` on and before `end`, in UTC, ascending. Raises OptionError for a time that is too early for any.

    `anchor`: a tick of an interval, or where it is counted from.
    """
    try:
        at = _first(rule, start, anchor)
        while at is not None and at < end:
            yield at.astimezone(UTC)
            at = _next(rule, at)
    except OverflowError as error:
        raise OptionError(f"a schedule has no ticks at {start:%Y-%m-%d}: give a later time") from error


def _first(rule: Rule, start: datetime, anchor: datetime) -> datetime | None:
    if not isinstance(rule, Every):
        return _next(rule, start - _INSTANT)
    step = timedelta(seconds=rule.seconds)
    return anchor - step * ((anchor - start) // step)


def _next(rule: Rule, moment: datetime) -> datetime | None:
    try:
        return rule.after(moment)
    except OptionError:  # it names no later time
        return None


# ---- Which ticks of a schedule become jobs by now, and when the next tick is.

Missed: TypeAlias = Literal["once", "skip", "all"]

#: Ticks are counted up to this number. A job that stands for more says this number.
MOST_COUNTED = 1_000
#: Seconds within which a worker must read the schedule for a tick not to count as missed, if the next tick has not come.
ON_TIME = timedelta(seconds=60)


class Due(NamedTuple):
    """The ticks of a schedule that are due by now."""

    ticks: list[tuple[datetime, int]]
    """The ticks that become jobs, ascending; each with the number of ticks for which its job stands."""
    next_at: datetime
    """The first tick that is not due yet."""
    left_out: int
    """Ticks that were missed, and become no job."""
    goes_on: bool
    """Whether more ticks are due by now: ask again, from `next_at`."""


def due_ticks(
    rule: Rule, next_at: datetime, now: datetime, *, missed: Missed, catch_up: timedelta | None = None, most: int = 100
) -> Due:
    """The ticks from `next_at` on that become jobs by `now`.

    `missed`: "once", a single job for all ticks, at the last; "skip", a job only for the last tick, if it is on time; "all", a job for
    each, at most `most` in an answer. `catch_up`: ticks that are longer ago are left out; None: no tick is too old.
    Raises OptionError if the rule names no later time.
    """
    if next_at > now:
        return Due([], next_at, 0, False)
    first, left_out = next_at, 0
    if catch_up is not None and next_at < now - catch_up:
        first = rule.first_from(next_at, now - catch_up)
        left_out = _count(rule, next_at, first - timedelta(microseconds=1))
        if first > now:
            return Due([], first, left_out, False)
    if missed == "all":
        return _each(rule, first, now, left_out, most)
    last = rule.last(first, now)
    number = _count(rule, first, last)
    after = rule.after(last)
    if missed == "once":
        return Due([(last, number)], after, left_out, False)
    if now - last <= ON_TIME:
        return Due([(last, 1)], after, left_out + number - 1, False)
    return Due([], after, left_out + number, False)


def is_stopped(paused_at: datetime | None, paused_by: str | None) -> bool:
    """Whether a schedule is paused so that the ticks of the pause are left out: it begins to count again when the pause ends.

    A schedule that was paused because no code declared it goes on where it was: its ticks meanwhile count as missed.
    """
    return paused_at is not None and paused_by != "undeclared"


def _each(rule: Rule, first: datetime, now: datetime, left_out: int, most: int) -> Due:
    ticks: list[tuple[datetime, int]] = []
    at = first
    while at <= now and len(ticks) < most:
        ticks.append((at, 1))
        at = rule.after(at)
    return Due(ticks, at, left_out, at <= now)


def _count(rule: Rule, first: datetime, until: datetime) -> int:
    return rule.count(first, until, most=MOST_COUNTED)


# ---- A schedule for people: its next times, its rule in words, its state. Pure: no clock, no SQL.

ScheduleState: TypeAlias = Literal["active", "paused", "bad"]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def coming_ticks(rule: Rule, row: Mapping[Any, Any]) -> Iterator[datetime]:
    """The next ticks, in UTC, ascending, as long as there are any. `row`: of `list_schedules`.

    They begin with that in the row; or, if it is paused, they are counted from now as at the end of its pause.
    """
    at: datetime | None
    if is_stopped(row["paused_at"], row["paused_by"]):
        at = _after(rule, row["now"])
    else:
        at = row["next_at"] or _after(rule, row["counts_from"])
    while at is not None:
        yield at.astimezone(UTC)
        at = _after(rule, at)


def rule_in_words(rule: Rule) -> str:
    """As in "At 07:30 on Monday through Friday", "Every 5m"."""
    if isinstance(rule, Cron):
        return rule.in_words
    left, parts = rule.seconds, list[str]()
    for size, unit in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number:,.0f}{unit}")
    if left or not parts:
        parts.append(f"{left:g}s")
    return f"Every {' '.join(parts)}"


def state_of(row: Mapping[Any, Any]) -> ScheduleState:
    """The state of a row of `list_schedules`: active, paused, or bad if a worker could not handle it."""
    return "paused" if row["paused_at"] is not None else "bad" if row["error"] is not None else "active"


def zone_of(rule: Rule) -> tzinfo:
    """The zone of a rule; an interval has UTC."""
    return UTC if isinstance(rule, Every) or rule.timezone == "UTC" else ZoneInfo(rule.timezone)


def _after(rule: Rule, moment: datetime) -> datetime | None:
    try:
        return rule.after(moment)
    except (OptionError, OverflowError):  # there is no later tick
        return None
