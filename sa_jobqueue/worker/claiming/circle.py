"""Claims that go round the keys of a queue together, and find nothing: each looks at the keys behind those of the one before.

One claim looks at a thousand keys or so. Where more of them wait for limits, only all of these claims together say that there is nothing
to start, and when to look again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...store import Ring, RingState

__all__ = ["Circle"]


@dataclass(slots=True)
class Circle:
    """What these claims have said so far."""

    begin: str
    """Where the first of them began, and where the last one stopped."""
    stopped: str
    again: bool = False
    rate_at: float = math.inf
    """The first time at which a rate allows more, by `monotonic()`."""

    @classmethod
    def at(cls, ring: Ring) -> Circle:
        """The circle that begins there."""
        return cls(ring.after or "", ring.after or "")

    def go_on(self, state: RingState, now: float) -> RingState | None:
        """Take the answer of the next claim. Returns what all of them say together; None: there are other keys to look at."""
        before, self.stopped = self.stopped, state.ring.after or ""
        self.again = self.again or state.again
        if state.rate_in is not None:
            self.rate_at = min(self.rate_at, now + state.rate_in)
        if state.unseen and not self._is_round(before):
            return None
        return replace(state, again=self.again, rate_in=None if self.rate_at == math.inf else self.rate_at - now)

    def _is_round(self, before: str) -> bool:
        """Whether the last claim has come by the place where the first one began. Strings have the order of the keys here."""
        if before < self.stopped:
            return before < self.begin <= self.stopped
        return before < self.begin or self.begin <= self.stopped
