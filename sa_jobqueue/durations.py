"""Lengths of time, as callers give them.

>>> seconds_of(timedelta(minutes=1), what="delay")
60.0
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from .errors import JobQueueError, OptionError

__all__ = ["MAX_DELAY", "Duration", "backoff", "checked_duration", "read_duration", "seconds_of"]

#: Seconds, or a timedelta.
Duration: TypeAlias = float | timedelta

#: The longest delay that is accepted, in seconds: 100 years, well inside what a timestamptz holds.
MAX_DELAY = 100 * 365.25 * 86_400


def seconds_of(duration: Duration, *, what: str) -> float:
    """`duration` as seconds, at least 0 and at most 100 years. Raises TypeError or ValueError, which name `what`."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        seconds = duration
    else:
        raise TypeError(f"{what} must be seconds or a timedelta, not {duration!r}")
    if not 0 <= seconds <= MAX_DELAY:  # NaN fails this too
        raise ValueError(f"{what} must be between 0 seconds and 100 years, not {duration!r}")
    return float(seconds)


def checked_duration(value: Duration, what: str, error: type[JobQueueError] = OptionError) -> float:
    """`value` as seconds; raise `error`, which calls it `what`, if it is no duration, below 0 or above 100 years."""
    try:
        return seconds_of(value, what=what)
    except (TypeError, ValueError, OverflowError) as reason:
        raise error(str(reason)) from reason


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.IGNORECASE)


def read_duration(text: str) -> timedelta:
    """A duration as a person writes it: "90" seconds, "45s", "10m", "2h", "3d", "1w", "1h30m". Raises ValueError for anything else.

    >>> read_duration("1h30m")
    datetime.timedelta(seconds=5400)
    """
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return timedelta(seconds=float(text))
        if _DURATION.fullmatch(text):
            return timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text.lower())))
    except OverflowError:
        pass
    raise ValueError(f"{text!r} is not a duration; expected 45s, 10m, 2h, 3d, 1w or 1h30m")


def backoff(failures: int, *, first: float, most: float) -> float:
    """Seconds to wait after `failures` in a row: `first`, doubled each time, at most `most`."""
    return min(first * 2.0 ** min(max(failures - 1, 0), 10), most)
