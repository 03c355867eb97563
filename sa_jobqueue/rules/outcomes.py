"""How a run of a job can end.

A handler says `Retry`, `Snooze`, `RateLimited`, `Cancel` or `Discard` by returning it, which commits what it wrote through
`ctx.session`, or by raising it, which rolls that back:

>>> def charge(order_id: int) -> Snooze | None:
...     return Snooze(30)
>>> charge(1).seconds
30.0
"""

from __future__ import annotations

import copyreg
from dataclasses import dataclass
from typing import Any, TypeAlias

from .retry import Duration, seconds_of

#: Seconds for which a 429 keeps a key or a queue waiting at most: a wrong Retry-After must not stop a queue for a year.
_LONGEST_WAIT = 86_400.0


class HandlerOutcome(Exception):
    """An outcome that a handler may return or raise."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Copied as it is. A handler's own process pool pickles it, and would otherwise make it again from its message alone.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class Retry(HandlerOutcome):
    """Run the job again; this attempt counts. `after`: seconds or timedelta; by default the policy decides."""

    def __init__(self, after: Duration | None = None, *, reason: str = "") -> None:
        super().__init__(reason or "the handler asked for a retry")
        self.reason = str(self.args[0])
        self.seconds = None if after is None else seconds_of(after, what="Retry(after=...)")


class Snooze(HandlerOutcome):
    """Run the job again after `delay` (seconds or timedelta); no attempt is spent."""

    def __init__(self, delay: Duration) -> None:
        self.seconds = seconds_of(delay, what="Snooze(...)")
        super().__init__(f"snoozed for {self.seconds:g} s")


class RateLimited(HandlerOutcome):
    """The other side answered "too many requests": run the job again after `retry_after` (seconds or timedelta), and start no other
    job of its key before; without a key, none of its queue. No attempt is spent. More than a day counts as a day: then a single job asks again.

    Jobs that are running or already claimed go on.
    """

    def __init__(self, retry_after: Duration) -> None:
        self.seconds = min(seconds_of(retry_after, what="RateLimited(retry_after=...)"), _LONGEST_WAIT)
        super().__init__(f"rate limited for {self.seconds:g} s")


class Cancel(HandlerOutcome):
    """End the job as `cancelled`, with a reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler cancelled the job")
        self.reason = str(self.args[0])


class Discard(HandlerOutcome):
    """End the job as `failed` at once, with a reason, even if attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler discarded the job")
        self.reason = str(self.args[0])


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """A failed attempt as it is kept in `Job.errors`: cleaned and cut, see `failures.describe`."""

    type: str
    message: str
    traceback: str = ""

    def in_ascii(self) -> ErrorEntry:
        """The entry with a "?" for each character outside of ASCII, for a database whose encoding lacks some."""
        texts = (self.type, self.message, self.traceback)
        return ErrorEntry(*(text.encode("ascii", "replace").decode("ascii") for text in texts))


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned. `result` is JSON text, when the task records it."""

    result: str | None = None
    error: ErrorEntry | None = None
    """An entry for `Job.errors` although the job is done: its result could not be stored."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised (or timed out). `exception` is for the retry policy, `error` for the record."""

    exception: BaseException
    error: ErrorEntry


@dataclass(frozen=True, slots=True)
class Suspended:
    """The handler waits for a signal, a time or other jobs. The job is blocked until the wait is over, and no attempt is spent."""


@dataclass(frozen=True, slots=True)
class Undecodable:
    """The arguments do not fit the handler. The job ends as `failed`; an operator can retry it after a fix."""

    error: ErrorEntry


@dataclass(frozen=True, slots=True)
class Released:
    """The worker gives the job back, unstarted or because it stops; no attempt is spent.

    `seconds`: the time until the next claim; 0: the job keeps its place in the queue. `started`: the handler had begun. Then it counts as a rescue, because the
    handler may be the reason why the worker stops.
    """

    seconds: float = 0.0
    started: bool = False


@dataclass(frozen=True, slots=True)
class Rescued:
    """The lease expired. `retry`: whether the job may run again (`rescue=True`)."""

    error: ErrorEntry
    retry: bool = True


@dataclass(frozen=True, slots=True)
class Crashed:
    """The child process that ran the handler has died. `error` says how. It counts as a rescue, not as an attempt."""

    error: ErrorEntry


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The job's time was over before its handler was called; no attempt is spent. `failed`: its deadline was, not its expiry."""

    failed: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler was stopped because an operator cancelled the job."""

    error: ErrorEntry | None = None


Outcome: TypeAlias = (
    Completed
    | Failed
    | Undecodable
    | Released
    | Rescued
    | NotStarted
    | Crashed
    | Suspended
    | Cancelled
    | Retry
    | Snooze
    | RateLimited
    | Cancel
    | Discard
)
"""Everything that `lifecycle.decide` takes."""
