"""How long to wait before the next attempt, and how a failed attempt is described.

>>> RetryPolicy(base=10, factor=2, jitter=0).backoff(attempt=3, random=0.5)
40.0
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TypeAlias

from .durations import MAX_DELAY, Duration, seconds_of
from .log import get_logger
from .outcomes import ErrorEntry
from .tracebacks import message_of, name_of, text_of

__all__ = ["MAX_ERRORS", "MAX_MESSAGE", "MAX_TRACEBACK", "RetryPolicy", "describe", "entry", "next_delay"]

logger = get_logger(__name__)

#: Entries kept in `Job.errors`; the oldest go first. With the two lengths below a job's errors stay under 250 kB.
MAX_ERRORS = 20
#: Characters kept of an exception's message.
MAX_MESSAGE = 2_000
#: Characters kept of a traceback: its end, where the reason is.
MAX_TRACEBACK = 8_000

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

DelayRule: TypeAlias = Callable[[BaseException, int], Duration | None]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter: `base * factor ** (attempt - 1)`, at most `cap`, times 1 ± `jitter`.

    `base` and `cap` are seconds or timedeltas; `jitter` is a share between 0 and 1.
    `no_retry`: exception classes that end the job as failed at once.
    `delay`: a function of one's own, `(exception, attempt) -> seconds, timedelta or None`; None means no more
    attempts. It takes the place of the formula; `no_retry` and the job's `max_attempts` hold all the same.
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


def describe(exception: BaseException, *, hide: Container[str] = ()) -> ErrorEntry:
    """`exception` as it is kept: type, message and traceback, cleaned of what PostgreSQL cannot store, and cut.

    `hide`: the files whose frames are left out at the traceback's beginning; they say nothing about the handler.
    """
    try:
        frames = exception.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in hide:
            frames = frames.tb_next
        trace = text_of(exception, frames)
    except BaseException:
        trace = ""
    return entry(name_of(type(exception)), message_of(exception), trace)


def entry(type: str, message: str, traceback: str = "") -> ErrorEntry:
    """An entry for `Job.errors` that can be stored: cut, and cleaned."""
    return ErrorEntry(clean(type[:200]), clean(_head(message, MAX_MESSAGE)), clean(_tail(traceback, MAX_TRACEBACK)))


def clean(text: str) -> str:
    """`text` without NUL and lone surrogates, which PostgreSQL cannot store; both become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _tail(text: str, length: int) -> str:
    return text if len(text) <= length else "…" + text[-(length - 1) :]
