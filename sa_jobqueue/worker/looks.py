"""When a queue is to be looked at again: at once while it gives, ever later while it is empty."""

from __future__ import annotations

import random
from time import monotonic

__all__ = ["Look"]

#: The first wait, in seconds, after a queue was found empty; doubled from one to the next.
_FIRST_WAIT = 0.02


class Look:
    """The next look at one queue. `tell` is for any thread, the rest for the one that looks."""

    __slots__ = ("_wait", "at", "told")

    def __init__(self) -> None:
        self.at = 0.0
        """From when on it may be looked at, by `monotonic()`."""
        self.told = False
        """Whether new jobs were said to be there since the last claim began, which may not have seen them."""
        self._wait = _FIRST_WAIT

    def tell(self) -> None:
        """New jobs are said to be there."""
        self.told = True
        self.now()

    def now(self) -> None:
        """Look at the next opportunity."""
        self.at, self._wait = 0.0, _FIRST_WAIT

    def shorten(self) -> None:
        """It gave some: the next wait is the first of a series."""
        self._wait = _FIRST_WAIT

    def later(self, most: float) -> None:
        """It is empty: look after a wait, twice as long as the last one, `most` seconds at most."""
        wait, self._wait = self._wait, min(self._wait * 2, most)
        self.not_before(monotonic() + wait * random.uniform(0.8, 1.2))

    def not_before(self, at: float) -> None:
        """Look at that time, or as soon as it is told."""
        self.at = at
        if self.told:  # meanwhile, by another thread: what it wrote is overwritten
            self.now()
