"""What the worker's jobs do, told in one place, in batches and plain integers.

The parts of the worker say what has happened; `Worker.counts` comes from here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from ..lifecycle import Change, Event

__all__ = ["Observer"]


class Observer:
    """Counts into `counts`: by event what came of the jobs, and "lost" and "unknown".

    Any thread calls it; what is counted is written under the lock, because `+=` on a Counter is not one step.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self._counts, self._lock = counts, threading.Lock()
        self.claimed = 0
        """Jobs claimed and handed to their slots, so far. Only the service thread writes it."""
        self.rescued = 0
        """Jobs of other workers rescued, so far. Only maintenance writes it."""

    def claim(self, jobs: int) -> None:
        """So many jobs were claimed. On the service thread."""
        self.claimed += jobs

    def unknown(self) -> None:
        """A job goes back because its task is not registered here."""
        with self._lock:
            self._counts["unknown"] += 1

    def written(self, changes: Sequence[Change]) -> None:
        """These changes are in the database."""
        completed = sum(change.event is Event.COMPLETE for change in changes)
        with self._lock:
            if completed:
                self._counts[Event.COMPLETE.value] += completed
            if completed < len(changes):
                self._counts.update(change.event.value for change in changes if change.event is not Event.COMPLETE)

    def lost(self, jobs: int) -> None:
        """The outcomes of so many jobs came too late: their claims were over."""
        with self._lock:
            self._counts["lost"] += jobs

    def rescue(self, jobs: int) -> None:
        """So many jobs of other workers were rescued. On the maintenance thread."""
        self.rescued += jobs
