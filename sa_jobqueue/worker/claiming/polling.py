"""When a queue is polled again: at once while it gives jobs, at growing intervals while it is empty."""

from __future__ import annotations

import random
from time import monotonic

__all__ = ["PollTimer"]

#: Seconds of the first wait after a queue was found empty. Each wait doubles the one before.
_FIRST_WAIT = 0.02
#: Seconds for which a queue is held whose jobs can neither be claimed nor skipped: the first time, and at most.
_FIRST_HOLD, _LONGEST_HOLD = 0.2, 30.0


class PollTimer:
    """The time of one queue's next poll.

    `notify` is for any thread. The claimer's thread calls everything else.
    """

    __slots__ = ("_at", "_hold", "_wait", "held_until", "notified")

    def __init__(self) -> None:
        self._at = 0.0
        """The earliest time of the next poll, by `monotonic()`. Written by any thread, read by the claimer's."""
        self.notified = False
        """Whether new jobs were announced since the last claim began, which may have missed them. Set by any thread, reset by
        the claimer's."""
        self.held_until = 0.0
        """No poll before this time, whatever is announced. Only the claimer's thread writes and reads it."""
        self._wait = _FIRST_WAIT
        self._hold = _FIRST_HOLD

    @property
    def at(self) -> float:
        """The time of the next poll, by `monotonic()`."""
        return max(self._at, self.held_until)

    def notify(self) -> None:
        """New jobs were announced."""
        self.notified = True
        self.now()

    def now(self) -> None:
        """Poll at the next opportunity."""
        self._at, self._wait = 0.0, _FIRST_WAIT

    def reset(self) -> None:
        """The queue gave some jobs: the next wait is a first one."""
        self._wait = _FIRST_WAIT

    def back_off(self, most: float) -> None:
        """The queue is empty: poll after a wait twice as long as the last one, at most `most` seconds."""
        wait, self._wait = self._wait, min(self._wait * 2, most)
        self.not_before(monotonic() + wait * random.uniform(0.8, 1.2))

    def not_before(self, at: float) -> None:
        """Poll at that time, or when new jobs are announced."""
        self._at = at
        # `notify` may have run on another thread just before the line above, which then overwrote what it set. It writes
        # `notified` first, so it is seen here.
        if self.notified:
            self.now()

    def hold(self) -> None:
        """Do not poll for a while, whatever is announced: for twice as long as the last time, if that was a short while ago."""
        now = monotonic()
        recently = now < self.held_until + self._hold
        self._hold = min(2 * self._hold, _LONGEST_HOLD) if recently else _FIRST_HOLD
        self.held_until = now + self._hold * random.uniform(0.8, 1.2)

    @property
    def is_held(self) -> bool:
        """Whether the queue is held now."""
        return monotonic() < self.held_until

    def release(self) -> None:
        """The reason to hold the queue may be gone."""
        self.held_until = 0.0
