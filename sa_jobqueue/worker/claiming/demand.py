"""How many jobs are wanted from which queue, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic

import sqlalchemy as sa

from ..running.slots import Slots
from ..running.writer import OutcomeWriter
from .polling import PollTimer
from .throttle import Throttle

__all__ = ["Demand"]

#: While the database refuses this many outcomes, no more jobs are claimed.
_MOST_REFUSED = 100
#: Where limits hold, a claim takes this many jobs or half of the slots, so that handlers run while the next claim goes on.
_SMALL = 100


class Demand:
    """Jobs for the free slots of the queues whose poll is due.

    `max_jobs`: how many to claim in all. `together`: once a poll of one queue is due, all are polled; so a worker that ends when
    nothing is due finds that out by one claim. `notify` and `stop` are for any thread, the rest for the claimer's.
    """

    def __init__(
        self, all_slots: Mapping[str, Slots], writer: OutcomeWriter, *, max_jobs: int | None, together: bool
    ) -> None:
        self._all_slots, self._writer, self._max_jobs, self._together = all_slots, writer, max_jobs, together
        self.timers = {name: PollTimer() for name in all_slots}
        """By queue, when it is polled again."""
        self.throttle = Throttle()
        """Narrows what is claimed while the database is under pressure."""
        self.claimed = 0
        """Jobs claimed so far and handed over. Written by the claimer's thread, read by the event loop."""
        self.stopped = False
        """Whether no more are wanted. Written by the thread that stops the worker, read by the claimer's."""
        self.is_limited: Callable[[str], bool] = lambda queue: False
        """Whether limits hold in a queue: then no jobs are claimed ahead, for each would keep a permit from another worker."""
        self.announced = False
        """Whether jobs were announced since this was last reset, before claims that begin from now on."""

    def notify(self, queue: str | None) -> None:
        """New jobs were announced in this queue; None: perhaps in any."""
        for name, timer in self.timers.items():
            if queue is None or name == queue:
                timer.notify()

    def stop(self) -> None:
        """No more are wanted."""
        self.stopped = True

    def poll_all(self) -> None:
        """Poll all queues at the next opportunity."""
        for timer in self.timers.values():
            timer.now()

    def release(self, queues: Iterable[str]) -> None:
        """Poll these again also if they are held."""
        for name in queues:
            self.timers[name].release()

    @property
    def left(self) -> int | None:
        """How many more jobs may be claimed in all; None: any number."""
        return None if self._max_jobs is None else max(self._max_jobs - self.claimed, 0)

    @property
    def may_claim(self) -> bool:
        """Whether jobs may be claimed at all."""
        enough = self._max_jobs is not None and self.claimed >= self._max_jobs
        return not self.stopped and not enough and self._writer.refused < _MOST_REFUSED

    def renew(self, connection: sa.Connection) -> bool:
        """Begin a round. Returns whether `timers` has other queues than before: never, where all that are served are named."""
        return False

    def finds_more(self, connection: sa.Connection) -> bool:
        """Whether there are due jobs in queues that are not in `timers`, though they are served."""
        return False

    def _room(self, slots: Slots) -> int:
        room = self.throttle.room(slots)
        return min(room, self._unheld(slots)) if self.is_limited(slots.name) else room

    def _unheld(self, slots: Slots) -> int:
        """How many jobs to claim where limits hold."""
        most = max((slots.limit + 1) // 2, _SMALL)
        return min(most, slots.limit - slots.running - slots.waiting)

    def _begin(self, timer: PollTimer) -> None:
        """A claim of this queue begins: it sees what was announced before."""
        if timer.notified:
            timer.notified, self.announced = False, True

    def free(self) -> dict[str, int]:
        """How many jobs each queue has room for."""
        return (
            {name: free for name, slots in self._all_slots.items() if (free := self._room(slots)) > 0}
            if self.may_claim
            else {}
        )

    def now(self) -> dict[str, int]:
        """How many jobs to claim from each queue now."""
        if not self.may_claim:
            return {}
        now, left = monotonic(), self.left
        # Where each claim is for fewer jobs than there are queues, the first queues would leave none for the others.
        together = self._together and (left is None or left >= len(self.timers))
        together = together and any(timer.at <= now for timer in self.timers.values())
        wanted: dict[str, int] = {}
        for name, slots in self._all_slots.items():
            free = self._room(slots)
            if left is not None:
                free = min(free, left - sum(wanted.values()))
            timer = self.timers[name]
            if free > 0 and (timer.at <= now or (together and timer.held_until <= now)):
                wanted[name] = free
                self._begin(timer)
        return wanted
