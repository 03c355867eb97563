"""Lengths of time, as callers give them.

>>> seconds_of(timedelta(minutes=1), what="delay")
60.0
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from .errors import JobQueueError, OptionError

__all__ = ["MAX_DELAY", "Duration", "checked_duration", "seconds_of"]

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
