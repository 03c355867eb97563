"""What keeps a queued job from being started now, as a value that says it in a sentence.

>>> str(WaitReason("queue", "sync", "42", "running", limit=3, used=3, job_ids=[11, 12, 13]))
'waits for limit sync/42: 3 of 3 running (jobs 11, 12, 13)'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from .limits import Owner

__all__ = ["WaitReason", "What"]

#: What a job waits for: a limit of running jobs, a rate, the end of a pause, the time that a handler has said, another job of its key
#: that is to be tried again, its own time, other jobs of its workflow, or the end of the workflow's pause.
What: TypeAlias = Literal["running", "rate", "paused", "blocked", "strict", "later", "parents", "held"]


class WaitReason(NamedTuple):
    """A row of `why_waiting`: `WaitReason(*row)`. As text it is a sentence without its full stop."""

    owner: Owner | None
    """Whose limit it is: "queue" or "task"; None: the job itself is due later, or waits for others of its workflow."""
    name: str | None
    """The queue's, or the task's."""
    key: str | None
    """None: it holds for all jobs of the owner."""
    what: What
    limit: int | None = None
    """How many may run; or how many units of a rate may start in `seconds`."""
    used: int | None = None
    """How many run."""
    job_ids: Sequence[int] | None = None
    """Which run, or which wait to be tried again: the first 20, by id."""
    until: datetime | None = None
    """When it is over; None: that is not known."""
    seconds: float | None = None
    """The period of a rate."""
    reason: str | None = None
    """What was said of a pause."""

    def __str__(self) -> str:
        return self.said()

    def said(self, moment: Callable[[datetime], str] = str) -> str:
        """The sentence. `moment` writes a time as text."""
        until = "" if self.until is None else f"until {moment(self.until)}"
        match self.what:
            case "running":
                return f"waits for {self._whose('limit')}: {self.used} of {self.limit} running{self._jobs()}"
            case "rate":
                return f"waits for {self._whose('rate')}: {self.limit} in {self.seconds:g} s" + (until and f", {until}")
            case "paused":
                return f"waits for {self._whose('pause')} to end" + ("" if self.reason is None else f": {self.reason}")
            case "blocked":
                return f"waits for {self.owner} {self._place()}: the other side has rate limited it, {until}"
            case "strict":
                return f"waits for {self._whose('strict order')}: others are tried again first{self._jobs()}, {until}"
            case "parents":
                return f"waits for {self.used or 0:,} of its workflow to end{self._jobs()}"
            case "held":
                return "waits for the pause of its workflow to end"
            case "later":
                return f"waits {until}, when it is due"

    def _whose(self, what: str) -> str:
        return f"{what} {'task ' if self.owner == 'task' else ''}{self._place()}"

    def _place(self) -> str:
        return f"{self.name}" if self.key is None else f"{self.name}/{self.key}"

    def _jobs(self) -> str:
        ids = list(self.job_ids or ())
        if not ids:
            return ""
        more = (self.used or 0) - len(ids)
        others = f" and {more:,} more" if more > 0 else ""
        return f" ({'job' if len(ids) == 1 else 'jobs'} {', '.join(map(str, ids))}{others})"
