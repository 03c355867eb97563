"""Lengths of time, as callers give them.

>>> seconds_of(timedelta(minutes=1), what="delay")
60.0
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from ..errors import JobQueueError, OptionError
from ..util.log import get_logger

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


# ---- How long to wait before the next attempt.

logger = get_logger(__name__)

DelayRule: TypeAlias = Callable[[BaseException, int], Duration | None]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter: `base * factor ** (attempt - 1)`, at most `cap`, times 1 ± `jitter`.

    `base` and `cap` are seconds or timedeltas; `jitter` is a share between 0 and 1.
    `no_retry`: exception classes that end the job as failed at once.
    `delay`: your function `(exception, attempt) -> seconds, timedelta or None`, called instead of the formula. None means
    no more attempts. `no_retry` and the job's `max_attempts` still apply.
    """

    base: Duration = 15.0
    factor: float = 2.0
    cap: Duration = 3_600.0 * 6
    jitter: float = 0.1
    no_retry: tuple[type[BaseException], ...] = ()
    delay: DelayRule | None = None

    def __post_init__(self) -> None:
        seconds_of(self.base, what="RetryPolicy.base")
        seconds_of(self.cap, what="RetryPolicy.cap")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"RetryPolicy.factor must be at least 1, not {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"RetryPolicy.jitter must be between 0 and 1, not {self.jitter!r}")
        if isinstance(self.no_retry, type):
            raise ValueError(f"RetryPolicy.no_retry holds exception classes: ({self.no_retry.__name__},)")
        object.__setattr__(self, "no_retry", tuple(self.no_retry))  # isinstance() takes no list
        for rule in self.no_retry:
            if not (isinstance(rule, type) and issubclass(rule, BaseException)):
                raise ValueError(f"RetryPolicy.no_retry holds exception classes, not {rule!r}")

    def backoff(self, attempt: int, random: float) -> float:
        """Seconds to wait after attempt number `attempt` (1 is the first). `random`: uniform in [0, 1)."""
        base, cap = seconds_of(self.base, what="base"), seconds_of(self.cap, what="cap")
        try:
            raw = base * self.factor ** max(attempt - 1, 0)
        except OverflowError:
            raw = cap if base else 0.0
        return min(min(raw, cap) * (1 + self.jitter * (2 * random - 1)), MAX_DELAY)


def next_delay(policy: RetryPolicy, exception: BaseException, attempt: int, random: float) -> float | None:
    """Seconds until the next attempt after `exception`, or None for no more attempts."""
    if isinstance(exception, policy.no_retry):
        return None
    if policy.delay is None:
        return policy.backoff(attempt, random)
    try:
        own = policy.delay(exception, attempt)
        return None if own is None else seconds_of(own, what="what RetryPolicy.delay returned")
    except BaseException:
        logger.exception("RetryPolicy.delay failed; the formula is used instead", extra={"attempt": attempt})
        return policy.backoff(attempt, random)
