"""How many jobs a worker holds at most while the database is under pressure."""

from __future__ import annotations

from time import monotonic

from ..running.slots import Slots

__all__ = ["Throttle"]

#: Seconds after which a queue that got no job may claim one more, if it has a free slot: so handlers that run for hours do not keep
#: an urgent job waiting for hours.
_ONE_MORE = 60.0


class Throttle:
    """Narrows what the queues may claim to a share of their slots: one job at a time at least, and none ahead."""

    def __init__(self) -> None:
        self.share = 1.0
        """Of the slots, from 0 to 1. Written by the maintenance thread, read by the claimer's."""
        self._seen: dict[str, tuple[int, float]] = {}
        """By queue, how many jobs it has got so far, and since when. Only for the claimer's thread."""

    def room(self, slots: Slots) -> int:
        """How many jobs of this queue to claim now."""
        free = slots.free()
        if self.share >= 1.0:
            if self._seen:
                self._seen.clear()
            return free
        taken = slots.running + slots.waiting
        held = taken - slots.stuck  # a handler that timed out may never give its slot back
        most = max(int(slots.limit * self.share), 1)
        if held < most:
            return min(free, most - held)
        return min(free, 1) if self._stands_still(slots) and taken < slots.limit else 0

    def _stands_still(self, slots: Slots) -> bool:
        now, count = monotonic(), slots.started + slots.waiting
        before, since = self._seen.get(slots.name, (-1, now))
        if count != before:
            self._seen[slots.name] = count, now
            return False
        return now - since >= _ONE_MORE
