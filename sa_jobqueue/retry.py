"""How long to wait before the next attempt.

>>> RetryPolicy(base=10, factor=2, jitter=0).backoff(attempt=3, random=0.5)
40.0
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .durations import MAX_DELAY, Duration, seconds_of
from .log import get_logger

__all__ = ["RetryPolicy", "next_delay"]

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
