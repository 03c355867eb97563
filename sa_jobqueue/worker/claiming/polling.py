"""When a queue is polled again: at once while it gives jobs, at growing intervals while it is empty."""

from __future__ import annotations

import random
from time import monotonic

__all__ = ["PollTimer"]

#: Seconds of the first wait after a queue was found empty. Each wait doubles the one before.
_FIRST_WAIT = 0.02


class PollTimer:
    """The time of one queue's next poll.

    `notify` is for any thread. The service thread calls everything else.
    """

    __slots__ = ("_wait", "at", "notified")

    def __init__(self) -> None:
        self.at = 0.0
        """The earliest time of the next poll, by `monotonic()`. Written by any thread."""
        self.notified = False
        """Whether new jobs were announced since the last claim began, which may have missed them. Set by any thread, reset by
        the service thread."""
        self._wait = _FIRST_WAIT

    def notify(self) -> None:
        """New jobs were announced."""
        self.notified = True
        self.now()

    def now(self) -> None:
        """Poll at the next opportunity."""
        self.at, self._wait = 0.0, _FIRST_WAIT

    def reset(self) -> None:
        """The queue gave some jobs: the next wait is a first one."""
        self._wait = _FIRST_WAIT

    def back_off(self, most: float) -> None:
        """The queue is empty: poll after a wait twice as long as the last one, at most `most` seconds."""
        wait, self._wait = self._wait, min(self._wait * 2, most)
        self.not_before(monotonic() + wait * random.uniform(0.8, 1.2))

    def not_before(self, at: float) -> None:
        """Poll at that time, or when new jobs are announced."""
        self.at = at
        # `notify` may have run on another thread just before the line above, which then overwrote what it set. It writes
        # `notified` first, so it is seen here.
        if self.notified:
            self.now()
