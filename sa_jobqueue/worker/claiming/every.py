"""Claiming for the queue "*": its slots are shared by all queues that the worker does not name.

A claim cannot take ten jobs of any queue, so each claim asks for some jobs of certain queues. While slots are free, the worker finds
once a second which queues have due jobs, and each wake-up names a queue. The free slots are divided among these queues in turns. So
a queue of 10,000 jobs starves no other queue, and a single queue gets all slots.

The lookup is the poll of "*", a queue that has no jobs itself. It is treated like an empty queue, which decides when to poll
again, whether to ask to be woken, and whether the worker is idle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Mapping
from time import monotonic

import sqlalchemy as sa

from ...sql.waking import DUE_SOON, PERMITS_CHANGED, SCHEDULES_CHANGED, WORKFLOWS_CHANGED
from ...sql.workers import EVERY_QUEUE
from ..connections.service import Connector
from ..running.slots import Slots
from ..running.writer import OutcomeWriter
from .demand import Demand, Gates, PollTimer

#: Seconds between two lookups at most, even with a longer `poll`: an operator who starts a new queue waits no longer.
_INTERVAL = 1.0
#: The pause after a lookup is this many times as long as the lookup took, so that lookups take at most 5 % of the claimer's time;
#: and the most seconds of a pause, because a single lookup may be slow: the first in a process, or on a busy machine.
_SPACING, _LONGEST_PAUSE = 20.0, 5.0
#: Wake-ups that do not name a queue.
_NO_QUEUES = {DUE_SOON, PERMITS_CHANGED, SCHEDULES_CHANGED, WORKFLOWS_CHANGED}


class _LookupTimer(PollTimer):
    """When to search for queues again."""

    def back_off(self, most: float) -> None:
        super().back_off(min(most, _INTERVAL))


class SharedDemand(Demand):
    """The demand of a worker that serves "*". `timers` has the queues that it names, "*", and other queues that have due jobs."""

    def __init__(
        self,
        all_slots: Mapping[str, Slots],
        writer: OutcomeWriter,
        *,
        max_jobs: int | None,
        together: bool,
        connector: Connector,
    ) -> None:
        named = {name: slots for name, slots in all_slots.items() if name != EVERY_QUEUE}
        super().__init__(named, writer, max_jobs=max_jobs, together=together)
        self._connector, self._named, self._shared = connector, {*named, EVERY_QUEUE}, all_slots[EVERY_QUEUE]
        self.timers[EVERY_QUEUE] = _LookupTimer()
        self._heard: deque[str] = deque()
        """Announced queues that are not in `timers`. Any thread adds to them, the claimer's removes them."""
        self._sharing: list[str] = []
        """The queues that share the slots, by name."""
        self._last = ""
        """The queue behind which the next division begins."""
        self._has_looked_up = False
        """Whether this round has looked up the queues."""

    def notify(self, queue: str | None) -> None:
        """As in `Demand`; an unknown queue is added in the next round."""
        if queue is None:
            # A free permit, for example, needs no lookup; and a reconnect polls all. The list is made in one step.
            for name, each in list(self.timers.items()):
                if name != EVERY_QUEUE:
                    each.notify()
        elif (timer := self.timers.get(queue)) is not None:
            timer.notify()
        elif queue not in _NO_QUEUES:
            self._heard.append(queue)

    def renew(self, connection: sa.Connection) -> bool:
        """Add the queues that were announced, and search for others when that is due."""
        changed = bool(self._heard)
        while self._heard:
            self.timers.setdefault(self._heard.popleft(), PollTimer()).notify()
        self._has_looked_up = self._is_lookup_due()
        if self._has_looked_up:
            due = self._due_queues(connection)
            new, gone = due - self.timers.keys(), self.timers.keys() - due - self._named
            self.timers.update((name, PollTimer()) for name in new)
            for name in gone:
                timer = self.timers.pop(name)
                if timer.notified:  # for a job that may be newer than the lookup
                    self.timers[name] = timer
            changed = changed or bool(new or gone)
        if changed:
            self._sharing = sorted(self.timers.keys() - self._named)
        return changed

    def finds_more(self, connection: sa.Connection) -> bool:
        """As in `Demand`. These queues are added in the next round."""
        new = self._due_queues(connection) - self.timers.keys()
        self._heard.extend(new)
        return bool(new)

    def free(self) -> dict[str, int]:
        """As in `Demand`; the shared slots are divided among all queues that share them, so some may have 0."""
        free = super().free()
        if self.may_claim and (room := self._room(self._shared)) > 0:
            free |= {EVERY_QUEUE: room, **self._divided(room, self._in_turn())}
        return free

    def now(self) -> dict[str, int]:
        """As in `Demand`."""
        wanted = super().now()
        room = self._room(self._shared) if self.may_claim else 0
        if self.left is not None:
            room = min(room, self.left - sum(wanted.values()))
        if room <= 0:
            return wanted
        now, may_end, timers = monotonic(), self._may_end(), self.timers
        due = [
            name for name in self._in_turn() if timers[name].at <= now or (may_end and timers[name].held_until <= now)
        ]
        for name, share in self._divided(room, due).items():
            if share:
                wanted[name] = share
                self._begin(timers[name])
        if due and (more := room % len(due)):
            self._last = due[more - 1]
        if self._has_looked_up:
            wanted[EVERY_QUEUE] = 1
        return wanted

    def _in_turn(self) -> list[str]:
        """The queues that share the slots and may have some now, beginning with the queue whose turn it is."""
        begin = bisect_right(self._sharing, self._last)
        names = self._sharing[begin:] + self._sharing[:begin]
        return names if self._unheld(self._shared) > 0 else [name for name in names if not self.is_limited(name)]

    def _divided(self, room: int, names: list[str]) -> dict[str, int]:
        """The number of jobs to claim from each of these queues."""
        shares: dict[str, int] = {}
        unheld = self._unheld(self._shared)
        for number, name in enumerate(names):
            share = room // len(names) + (number < room % len(names))
            if self.is_limited(name):
                share = min(share, unheld)
                unheld -= share
            shares[name] = share
        return shares

    def _may_end(self) -> bool:
        """Whether the worker ends if no queue has a job: then all are polled once a poll is due."""
        now, idle = monotonic(), not self._shared.running and not self._shared.waiting
        return self._together and idle and any(timer.at <= now for timer in self.timers.values())

    def _is_lookup_due(self) -> bool:
        timer, now = self.timers[EVERY_QUEUE], monotonic()
        if not self.may_claim or timer.held_until > now or self._room(self._shared) <= 0:
            return False
        return timer.at <= now or self._may_end()

    def _due_queues(self, connection: sa.Connection) -> set[str]:
        began = monotonic()
        with self._connector.begin_one(connection):
            found = self._connector.store.due_queues(connection)
        ended = monotonic()
        if not self._together:  # otherwise the worker ends as soon as it can
            self.timers[EVERY_QUEUE].held_until = ended + min(_SPACING * (ended - began), _LONGEST_PAUSE)
        return found


class SharedGates(Gates):
    """The gates of a worker that serves "*"."""

    def ask(self, connection: sa.Connection, short: Collection[str], timers: Mapping[str, PollTimer]) -> bool:
        """As in `Gates`. While no queue keeps the worker busy all gates are opened; otherwise the gates of known dry queues."""
        now = monotonic()
        if all(timer.at > now or name in short for name, timer in timers.items()):
            return super().ask(connection, [EVERY_QUEUE], {})
        known = [name for name in short if name != EVERY_QUEUE]
        others = {name: timer for name, timer in timers.items() if name != EVERY_QUEUE}
        return bool(known) and super().ask(connection, known, others)
