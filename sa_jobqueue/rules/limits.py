"""Limits of a queue or a task: how many of its jobs may run, how fast they may start, for all together and for each key.

>>> limits = Limits(running=100, per_key=KeyLimits(running=1, rate=Rate(20, per=60, burst=5)))
>>> limits.columns()["key_rate_seconds"]
60.0
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from ..errors import OptionError
from .retry import Duration, checked_duration, read_duration

#: Who has limits.
Owner: TypeAlias = Literal["queue", "task"]
WhenFull: TypeAlias = Literal["wait", "drop_newest", "replace_oldest_waiting", "cancel_running"]
#: What the keys of a queue share equally.
Share: TypeAlias = Literal["starts", "time"]
#: The most failures that a breaker counts, and the longest time in seconds for which it counts or rests.
_MOST_FAILURES, _DAY = 1_000, 86_400.0

#: The error for a task that has a `share`.
NO_SHARE = "share is of a queue, whose keys take turns, and not of a task: write Registry.queue(..., limits=Limits(share='time'))"
#: The most jobs that a limit lets run, and that may wait: more than a million are not counted.
MOST_JOBS = 1_000_000
#: The largest weight of a key.
_HEAVIEST = 1_000
#: The largest numbers of a rate, which PostgreSQL keeps as integers.
_MOST_UNITS = 1_000_000_000
#: The names of keys that only limit, and the most that a job has.
_OF, MOST_KEYS = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,49}"), 10
#: The most characters of a unit's name, and the most units that a job takes.
_LONGEST_UNIT, _MOST_NAMED = 100, 999_999_999
#: The shortest and the longest period of a rate, in seconds: a microsecond, a year.
_SHORTEST, _LONGEST = 0.000_001, 365.25 * 86_400


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts in `per`, which is seconds or a timedelta, from a microsecond to a year.

    They are spread evenly, by the generic cell rate algorithm (ITU-T I.371). `burst`: how many may start at once after a time in
    which none did; then the others follow singly. So no window of the length `per` has more than `count + burst` starts.
    `count` and `burst` are 1 to 1,000,000,000. A job counts as its `units`.

    `unit`: the name of the counted unit, 1 to 100 characters, as in `Rate(200_000, per=60, burst=20_000, unit="tokens")`. A job takes the units in its
    `options(units={"tokens": 1800})`, 0 by default. "": the rate counts jobs, or their `units=3`.

    Raises OptionError for a value that cannot be used.
    """

    count: int
    per: Duration = 1.0
    burst: int = 1
    unit: str = ""

    def __post_init__(self) -> None:
        if self.unit != "":
            checked_unit(self.unit)
        checked_number(self.count, "a rate's count", 1, _MOST_UNITS)
        checked_number(self.burst, "a rate's burst", 1, _MOST_UNITS)
        seconds = checked_duration(self.per, "a rate's per")
        if not _SHORTEST <= seconds <= _LONGEST:
            raise OptionError(f"a rate's per must be from a microsecond to a year, not {self.per!r}")
        object.__setattr__(self, "per", seconds)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of the jobs of each key by itself: how many may run at once, and how fast they may start.

    `running`: 1 to 1,000,000; with 1 they run in turn. `rate`: a single rate; or `rates`: several rates, which all hold, at most one per
    unit and period. None: no such limit. Raises OptionError for a value that cannot be used.
    """

    running: int | None = None
    rate: Rate | None = None
    rates: Sequence[Rate] | None = None

    def __post_init__(self) -> None:
        _check(self)

    def columns(self, prefix: str = "key_") -> dict[str, Any]:
        """The columns of `LimitRow` that say this; with the prefix "" those of `KeyRow`."""
        return limit_columns(prefix, running=self.running, rates=_all_rates(self))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a queue, or of a task in any queue. They hold over all workers together; the strictest wins.

    `running`: how many of its jobs may run at once, 1 to 1,000,000. `rate`: how fast they may start; or `rates`: several rates, which all
    hold, at most one per unit and period. `per_key`: the limits
    of the jobs of each key by itself. None: no such limit.

    `strict`: a job that was claimed and is queued again goes first in its key, and while it waits, no other job of that key starts.

    `when_full`, what becomes of jobs that wait because their key is at its limit: "wait", they wait; "drop_newest", they are
    cancelled; "replace_oldest_waiting", the newest waits and the others are cancelled; "cancel_running", the same, and what runs is
    cancelled, too. `max_waiting`: how many jobs of a key may wait, 0 to 1,000,000; of more, the oldest are cancelled with
    "replace_oldest_waiting" and "cancel_running", else the newest, also with "wait". None: any number with "wait", none with
    "drop_newest", else 1.

    `share`, only for a queue: what its keys share, by their weights. "starts": each key starts one job in its turn. "time": the
    key whose jobs have used the slots for the least time starts the next job, so a key with long jobs starts fewer jobs.

    `per`: the limits of each value of other keys of the jobs, by their names: `per={"provider": KeyLimits(running=8)}` limits jobs with
    `options(key="acme", keys={"provider": "openai"})`. Such a key only limits: it has no turns and no order.

    Raises OptionError for a value that cannot be used.
    """

    running: int | None = None
    rate: Rate | None = None
    per_key: KeyLimits | None = None
    strict: bool = False
    when_full: WhenFull = "wait"
    max_waiting: int | None = None
    share: Share = "starts"
    rates: Sequence[Rate] | None = None
    per: Mapping[str, KeyLimits] | None = None

    def __post_init__(self) -> None:
        _check(self)
        if self.per_key is not None and not isinstance(self.per_key, KeyLimits):
            raise OptionError(f"limits: per_key must be KeyLimits(...) or None, not {self.per_key!r}")
        if not isinstance(self.strict, bool):
            raise OptionError(f"limits: strict must be True or False, not {self.strict!r}")
        checked_when_full(self.when_full)
        checked_max_waiting(self.max_waiting)
        checked_share(self.share)
        object.__setattr__(self, "per", _checked_per(self.per))

    def columns(self) -> dict[str, Any]:
        """The columns of `LimitRow` that say this, also those that say that there is no limit."""
        return {
            **limit_columns(running=self.running, rates=_all_rates(self)),
            **(self.per_key or KeyLimits()).columns(),
            "strict": self.strict,
            "when_full": self.when_full,
            "max_waiting": self.max_waiting,
            "share": self.share,
            "per": None if self.per is None else {name: _set_columns(of_each) for name, of_each in self.per.items()},
        }


class Told(NamedTuple):
    """The report of a job's end to the breaker of its task: whether the job `failed`, and the numbers of the `Breaker`."""

    failed: bool
    by_key: bool
    failures: int
    per: float
    rest: float


@dataclass(frozen=True, slots=True)
class Breaker:
    """A circuit breaker for a task whose jobs call another system: after `failures` failures in `per` it opens, and no job of the task starts.

    After `rest` one job starts as a probe. If it completes, the breaker closes; if it fails, the breaker rests again. Failures are counted
    over all workers. `failures`: 1 to 1,000. `per` and `rest`: seconds or a timedelta, from 1 second to a day.

    `on`: the types of exceptions that count; by default every exception of the handler. A timeout is a `HandlerTimeout`, which is a `TimeoutError`. A
    rescue, a cancel, and outcomes such as `Retry` or `Snooze` do not count. `by`: "task", or "key" for a breaker of each key; failures of jobs
    without a key then open the breaker of the whole task.

    Raises OptionError for a value that cannot be used.
    """

    failures: int = 20
    per: Duration = 60.0
    rest: Duration = 120.0
    on: type[Exception] | tuple[type[Exception], ...] = Exception
    by: Literal["task", "key"] = "task"

    def __post_init__(self) -> None:
        checked_number(self.failures, "a breaker's failures", 1, _MOST_FAILURES)
        for name in ("per", "rest"):
            object.__setattr__(self, name, checked_rest(getattr(self, name), f"a breaker's {name}"))
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise OptionError(f"a breaker's on must be types of exceptions, as (TimeoutError,), not {self.on!r}")
        if self.by not in ("task", "key"):
            raise OptionError(f'a breaker\'s by must be "task" or "key", not {self.by!r}')

    def told(self, *, failed: bool) -> Told:
        """The report of a job's end to this breaker."""
        return Told(failed, self.by == "key", self.failures, cast(float, self.per), cast(float, self.rest))


def limit_columns(prefix: str = "", *, running: int | None, rates: Sequence[Rate]) -> dict[str, Any]:
    """The columns of a limit, each with `prefix` before its name."""
    first = next((rate for rate in rates if not rate.unit), None)
    further = [rate for rate in rates if rate is not first]
    return {
        f"{prefix}running": running,
        **rate_columns(first, prefix),
        f"{prefix}rates": [further_rate(rate) for rate in further] or None,
    }


def further_rate(rate: Rate) -> dict[str, Any]:
    """A further rate as JSON in a row."""
    return {"unit": rate.unit, "count": rate.count, "seconds": rate.per, "burst": rate.burst}


def _set_columns(limits: KeyLimits) -> dict[str, Any]:
    return {name: value for name, value in limits.columns("").items() if value is not None}


def _all_rates(limits: KeyLimits | Limits) -> Sequence[Rate]:
    return (limits.rates or ()) if limits.rate is None else (limits.rate,)


def rate_columns(rate: Rate | None, prefix: str = "") -> dict[str, Any]:
    """The columns of a rate, each with `prefix` before its name."""
    count, seconds, burst = (None, None, None) if rate is None else (rate.count, rate.per, rate.burst)
    return {f"{prefix}rate_count": count, f"{prefix}rate_seconds": seconds, f"{prefix}rate_burst": burst}


_RATE = re.compile(r"(\d[\d,]*)\s*/\s*(\d.*|[a-z]+)", re.IGNORECASE)


def read_rate(text: str, *, burst: int | None = None) -> Rate:
    """A rate as a person writes it: "500/1m", "20/s". Raises ValueError for another text, OptionError for numbers that cannot be used.

    >>> read_rate("500/1m", burst=50)
    Rate(count=500, per=60.0, burst=50, unit='')
    """
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a rate; expected a number and a time, as in 500/1m or 20/s")
    per = read_duration(found[2] if found[2][0].isdigit() else f"1{found[2]}")
    return Rate(int(found[1].replace(",", "")), per=per.total_seconds(), burst=1 if burst is None else burst)


def read_unit_rate(text: str) -> Rate:
    """A rate of a named unit as a person writes it: "tokens=200000/1m", "tokens=200000/1m:5000" with a burst. Raises OptionError for another text.

    >>> read_unit_rate("tokens=200000/1m:5000")
    Rate(count=200000, per=60.0, burst=5000, unit='tokens')
    """
    unit, _, rest = text.partition("=")
    rate, _, burst = rest.partition(":")
    try:
        read = read_rate(rate, burst=int(burst) if burst else None)
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"{text!r} is not a rate of a unit; expected as in tokens=200000/1m or tokens=200000/1m:5000"
        ) from None
    return replace(read, unit=checked_unit(unit))


def rate_said(count: int | None, seconds: float | None, burst: int | None = 1) -> str:
    """A rate as `read_rate` takes it, with its burst where that is more than 1; empty without a rate.

    >>> rate_said(500, 60.0, 50)
    '500/1m, burst 50'
    """
    if count is None or seconds is None:
        return ""
    return f"{count:,}/{_span(seconds)}" + (f", burst {burst:,}" if burst is not None and burst > 1 else "")


def rates_said(row: Mapping[str, Any], prefix: str = "") -> str:
    """All rates of a row, in the columns with this prefix: "500/1m; 200,000/1m tokens, burst 20,000"."""
    first = rate_said(*(row[f"{prefix}rate_{part}"] for part in ("count", "seconds", "burst")))
    others = [
        f"{rate['count']:,}/{_span(rate['seconds'])} {rate['unit']}".rstrip()
        + (f", burst {rate['burst']:,}" if rate["burst"] > 1 else "")
        for rate in row[f"{prefix}rates"] or ()
    ]
    return "; ".join(filter(None, [first, *others]))


def per_said(per: Mapping[str, Mapping[str, Any]] | None) -> list[str]:
    """The limits of each value of other keys, in the column of a row: ["each provider: 8 running, 500/1m"]."""
    of_none = KeyLimits().columns("")
    found: list[str] = []
    for name, columns in (per or {}).items():
        row = {**of_none, **columns}
        running = "" if row["running"] is None else f"{row['running']:,} running"
        found.append(f"each {name}: {', '.join(filter(None, (running, rates_said(row))))}")
    return found


def keys_said(extras: object) -> str | None:
    """The keys of a job that only limit, from its `extras`, which may be any JSON: "provider=openai, region=eu". None: it has none."""
    keys = extras.get("keys") if isinstance(extras, dict) else None
    return (
        ", ".join(f"{name}={value}" for name, value in sorted(keys.items())) or None if isinstance(keys, dict) else None
    )


def units_said(units: int | None, extras: object) -> str | None:
    """The units that a job takes, from its columns, for people: "3, 1,800 tokens". `extras` may be any JSON. None: the default, 1."""
    named = extras.get("units") if isinstance(extras, dict) else None
    amounts = named.items() if isinstance(named, dict) else ()
    parts = ["" if units is None else f"{units:,}", *(f"{n:,} {unit}" for unit, n in amounts if type(n) is int)]
    return ", ".join(filter(None, parts)) or None


def _span(seconds: float) -> str:
    """1m, 90s, 0.5s."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


# ---- each raises OptionError for a value that cannot be used


def checked_number(value: object, what: str, low: int, high: int, *, hint: str = "") -> int:
    """`value` if it is an integer (no bool) from `low` to `high`. `hint` ends the message about any other value."""
    if type(value) is not int or not low <= value <= high:
        raise OptionError(f"{what} must be an integer from {low} to {high:,}, not {value!r}{hint}")
    return value


def checked_running(value: object) -> int | None:
    """How many jobs may run at once, or None."""
    hint = "; to start none, pause it" if value == 0 else ""
    return None if value is None else checked_number(value, "limits: running", 1, MOST_JOBS, hint=hint)


def checked_when_full(value: object) -> WhenFull:
    """How jobs wait whose key is at its limit."""
    if value not in get_args(WhenFull):
        raise OptionError(f"limits: when_full must be one of {', '.join(get_args(WhenFull))}, not {value!r}")
    return cast(WhenFull, value)


def checked_share(value: object) -> Share:
    """What the keys of a queue get equal shares of."""
    if value not in get_args(Share):
        raise OptionError(f"limits: share must be one of {', '.join(get_args(Share))}, not {value!r}")
    return cast(Share, value)


def checked_max_waiting(value: object) -> int | None:
    """How many jobs of a key may wait, or None."""
    return None if value is None else checked_number(value, "limits: max_waiting", 0, MOST_JOBS)


def checked_rest(value: Duration, what: str) -> float:
    """The checked time for which a breaker counts or rests, in seconds."""
    seconds = checked_duration(value, what)
    if not 1.0 <= seconds <= _DAY:
        raise OptionError(f"{what} must be from 1 second to a day, not {seconds:g} s")
    return seconds


def checked_weight(value: object) -> int:
    """How many jobs a key gets in its turn."""
    return checked_number(value, "limits: weight", 1, _HEAVIEST)


def checked_of(name: object) -> str:
    """The name of a key that only limits."""
    if not isinstance(name, str) or _OF.fullmatch(name) is None:
        raise OptionError(
            f'the name of another key must be 1 to 50 letters, digits, ".", "_" or "-", and begin with a letter, as "provider", not {name!r}'
        )
    if name == "key":
        raise OptionError('the name of another key must not be "key": that is the key by which jobs are ordered')
    return name


def _checked_per(value: object) -> dict[str, KeyLimits] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(of_each, KeyLimits) for of_each in value.values()):
        raise OptionError(f'limits: per must be a dict as {{"provider": KeyLimits(running=8)}}, or None, not {value!r}')
    return {checked_of(name): of_each for name, of_each in value.items()} or None


def checked_unit(value: object) -> str:
    """The name of a unit."""
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_UNIT or not value.isprintable():
        raise OptionError(f"a unit must be a name of 1 to {_LONGEST_UNIT} printable characters, not {value!r}")
    return value


def checked_units(value: Mapping[str, int], least: int = 1) -> dict[str, int]:
    """Amounts of named units."""
    return {
        checked_unit(name): checked_number(amount, f"units: {name!r}", least, _MOST_NAMED)
        for name, amount in value.items()
    }


def _check(limits: KeyLimits | Limits) -> None:
    checked_running(limits.running)
    rate, rates = limits.rate, limits.rates
    if rate is not None and not isinstance(rate, Rate):
        raise OptionError(f"limits: rate must be Rate(count, per=seconds) or None, not {rate!r}")
    if rates is None:
        return
    if rate is not None:
        raise OptionError("limits: rate and rates exclude each other: put the rate into rates=[...]")
    if isinstance(rates, str) or not isinstance(rates, Sequence) or not all(isinstance(one, Rate) for one in rates):
        raise OptionError(f"limits: rates must be a list of Rate(count, per=seconds) or None, not {rates!r}")
    object.__setattr__(limits, "rates", tuple(rates) or None)
    if len({(one.unit, one.per) for one in rates}) < len(rates):
        raise OptionError(
            "limits: rates has two rates with one unit and one period: only the lower would count, so remove the higher rate"
        )
