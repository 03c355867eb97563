"""Decides how many jobs to claim from which queue, and when."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic

import sqlalchemy as sa

from ..connections.service import Connector
from ..running.slots import Slots
from ..running.writer import OutcomeWriter

#: Seconds after which a queue that got no job may claim another, if it has a free slot, so that handlers that run for hours do not
#: keep an urgent job waiting for hours.
_ONE_MORE = 60.0


class Throttle:
    """Limits the claims of the queues to a share of their slots: at least one job at a time, and none ahead."""

    def __init__(self) -> None:
        self.share = 1.0
        """The share of the slots, from 0 to 1. Written by the maintenance thread, read by the claimer's."""
        self._seen: dict[str, tuple[int, float]] = {}
        """By queue, the number of jobs that it has got so far, and since when. Only for the claimer's thread."""

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
            return min(free, int((most - held) * slots.per_slot))
        return min(free, 1) if self._stands_still(slots) and taken < slots.limit else 0

    def _stands_still(self, slots: Slots) -> bool:
        now, count = monotonic(), slots.started + slots.waiting
        before, since = self._seen.get(slots.name, (-1, now))
        if count != before:
            self._seen[slots.name] = count, now
            return False
        return now - since >= _ONE_MORE


# ---- When a queue is polled again: at once while it gives jobs, at growing intervals while it is empty.

#: Seconds of the first wait after a queue was found empty. Each wait is twice as long as the last.
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
        """No poll before this time, even if jobs are announced. Only the claimer's thread writes and reads it."""
        self._wait = _FIRST_WAIT
        self._hold = _FIRST_HOLD

    @property
    def at(self) -> float:
        """The time of the next poll, by `monotonic()`."""
        return max(self._at, self.held_until)

    def notify(self) -> None:
        """Note that new jobs were announced."""
        self.notified = True
        self.now()

    def now(self) -> None:
        """Poll at the next opportunity."""
        self._at, self._wait = 0.0, _FIRST_WAIT

    def reset(self) -> None:
        """Make the next wait as short as the first, because the queue gave some jobs."""
        self._wait = _FIRST_WAIT

    def back_off(self, most: float) -> None:
        """Poll an empty queue after a wait twice as long as the last, at most `most` seconds."""
        wait, self._wait = self._wait, min(self._wait * 2, most)
        self.not_before(monotonic() + wait * random.uniform(0.8, 1.2))

    def is_rare(self, most: float) -> bool:
        """Whether `back_off` would wait for these `most` seconds."""
        return self._wait >= most

    def rest(self) -> None:
        """Do not poll until jobs are announced, or `not_before` sets a time."""
        self.not_before(math.inf)

    def not_before(self, at: float) -> None:
        """Poll at that time, or when new jobs are announced."""
        self._at = at
        # `notify` may have run on another thread just before the line above, which then overwrote its value. It writes
        # `notified` first, so that is seen here.
        if self.notified:
            self.now()

    def hold(self) -> None:
        """Do not poll for a while, even if jobs are announced: for twice as long as the last time, if that was a short while ago."""
        now = monotonic()
        recently = now < self.held_until + self._hold
        self._hold = min(2 * self._hold, _LONGEST_HOLD) if recently else _FIRST_HOLD
        self.held_until = now + self._hold * random.uniform(0.8, 1.2)

    @property
    def is_held(self) -> bool:
        """Whether the queue is held now."""
        return monotonic() < self.held_until

    def release(self) -> None:
        """End the hold, because its reason may be gone."""
        self.held_until = 0.0


#: While the database refuses this many outcomes, no more jobs are claimed.
_MOST_REFUSED = 100
#: Where limits hold, a claim takes this many jobs or half of the slots, so that handlers run during the next claim.
_SMALL = 100
#: While other jobs are coming, a claim is made for this share of slots and buffer at least.
_WORTH_A_CLAIM = 0.25


class Demand:
    """Jobs for the free slots of the queues whose poll is due.

    `max_jobs`: the number of jobs to claim in all. `together`: once a poll of a queue is due, all are polled, so that a worker that
    ends when no job is due finds that out by a single claim. `notify` and `stop` are for any thread, the rest for the claimer's.
    """

    def __init__(
        self, all_slots: Mapping[str, Slots], writer: OutcomeWriter, *, max_jobs: int | None, together: bool
    ) -> None:
        self._all_slots, self._writer, self._max_jobs, self._together = all_slots, writer, max_jobs, together
        self.timers = {name: PollTimer() for name in all_slots}
        """By queue, when it is polled again."""
        self.throttle = Throttle()
        """Limits the claims while the database is under pressure."""
        self.claimed = 0
        """Jobs claimed so far and handed over. Written by the claimer's thread, read by the event loop."""
        self.stopped = False
        """Whether no more jobs are wanted. Written by the thread that stops the worker, read by the claimer's."""
        self.is_limited: Callable[[str], bool] = lambda queue: False
        """Whether limits hold in a queue: then no jobs are claimed ahead of slow handlers, for each would keep a permit from another worker."""
        self.is_capped: Callable[[str], bool] = lambda queue: False
        """Whether a limit holds for all jobs of a queue together."""
        self.coming: Mapping[str, int] = {}
        """By queue, the jobs that were asked for and are not handed over yet."""
        self.announced = False
        """Whether jobs were announced since this was last reset, before claims that begin from now on."""

    def notify(self, queue: str | None) -> None:
        """Note that new jobs were announced in this queue; None: perhaps in any queue."""
        if queue is None:
            for each in list(self.timers.values()):  # in one step: the claimer's thread may add queues
                each.notify()
        elif (timer := self.timers.get(queue)) is not None:
            timer.notify()

    def stop(self) -> None:
        """Claim no more jobs."""
        self.stopped = True

    def follow_slots(self) -> None:
        """After a change of the slots: claim only for the queues that have slots."""
        for name, slots in self._all_slots.items():
            if slots.limit:
                self.timers.setdefault(name, PollTimer())
            else:
                self.timers.pop(name, None)

    def poll_all(self) -> None:
        """Poll all queues at the next opportunity."""
        for timer in self.timers.values():
            timer.now()

    def release(self, queues: Iterable[str]) -> None:
        """End the hold of these queues."""
        for name in queues:
            self.timers[name].release()

    @property
    def left(self) -> int | None:
        """How many more jobs may be claimed in all; None: any number."""
        return None if self._max_jobs is None else max(self._max_jobs - self.claimed - sum(self.coming.values()), 0)

    @property
    def may_claim(self) -> bool:
        """Whether jobs may be claimed at all."""
        return not self.stopped and self.left != 0 and self._writer.refused < _MOST_REFUSED

    def renew(self, connection: sa.Connection) -> bool:
        """Begin a round. Returns whether `timers` has other queues than before: never, where all served queues are named."""
        return False

    def finds_more(self, connection: sa.Connection) -> bool:
        """Whether there are due jobs in queues that are not in `timers`, though they are served."""
        return False

    def _room(self, slots: Slots) -> int:
        room, coming = self.throttle.room(slots), self.coming.get(slots.name, 0)
        if limited := self.is_limited(slots.name):
            most, room = slots.limit, min(room, self._unheld(slots))
        else:
            most, room = int((slots.limit + slots.ahead) * slots.per_slot), room - coming
        if coming:
            return room if room >= most * _WORTH_A_CLAIM else 0
        if not limited and slots.ahead and not slots.waiting:
            # The runners run dry: the next claim is to be under way while these jobs run.
            room = min(room, most // 2)
        return room

    def _unheld(self, slots: Slots) -> int:
        """The number of jobs to claim where limits hold."""
        most, held, coming = slots.limit, slots.running + slots.waiting, self.coming.get(slots.name, 0)
        if held and coming:
            return 0  # handlers are slower than claims: these jobs are for them, at once
        if not held and slots.ahead >= most and not self.is_capped(slots.name):
            most *= 2  # handlers end before the next claim, so half of these wait for one claim
        per_slot = slots.per_slot  # 1 except for batch tasks
        return min(max(int((most + 1) // 2 * per_slot), _SMALL), int((most - held) * per_slot) - coming)

    def _begin(self, timer: PollTimer) -> None:
        """Begin a claim of a queue, which sees the jobs that were announced before."""
        if timer.notified:
            timer.notified, self.announced = False, True

    def free(self) -> dict[str, int]:
        """The number of jobs for which each queue has room."""
        if not self.may_claim:
            return {}
        return {name: free for name, slots in self._all_slots.items() if (free := self._room(slots)) > 0}

    def now(self) -> dict[str, int]:
        """The number of jobs to claim from each queue now."""
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
            if free <= 0:
                continue
            timer = self.timers[name]
            if timer.at <= now or (together and timer.held_until <= now):
                wanted[name] = free
                self._begin(timer)
        return wanted


# ---- Asking to be woken: an open gate means that a worker waits for jobs of a queue, so that a commit that enqueues there sends a NOTIFY.

#: Seconds for which a gate is opened: at least, and at most (for that long producers send NOTIFYs to a worker that was killed).
#: Polls that find nothing open it again, so it stays open for three polls.
_SECONDS, _LONGEST = 5.0, 60.0


class Gates:
    """The gates that this worker has opened. Only for the claimer's thread."""

    def __init__(self, connector: Connector, *, poll: float) -> None:
        self._connector = connector
        self._seconds = min(max(_SECONDS, 3 * poll), _LONGEST)
        self._open_until: dict[str, float] = {}
        """By queue, by `monotonic()`."""

    @property
    def longest_poll(self) -> float:
        """Seconds between two polls at most, so that the gate stays open."""
        return self._seconds / 3

    def ask(self, connection: sa.Connection, short: Collection[str], timers: Mapping[str, PollTimer]) -> bool:
        """Open the gates of the queues that have run dry, in `short` or polled later, unless they are open.

        Not the gates of queues that keep us busy: their producers would send useless NOTIFYs, and each takes a lock at its
        commit. Returns whether the gate of a queue in `short` was closed until now: jobs committed meanwhile have woken no worker.
        """
        now = monotonic()
        if all(self._open_until.get(name, 0.0) >= now + self._seconds / 2 for name in short):
            return False
        dry = {*short, *(name for name, timer in timers.items() if timer.at > now)}
        with self._connector.begin_one(connection):
            self._connector.store.listen_for(connection, sorted(dry), seconds=self._seconds)
        was_closed = any(self._open_until.get(name, 0.0) < monotonic() for name in short)
        self._open_until |= dict.fromkeys(dry, now + self._seconds)
        return was_closed

    def are_open(self, queues: Iterable[str]) -> bool:
        """Whether the gates of these queues are open."""
        return all(self._open_until.get(name, 0.0) > monotonic() for name in queues)

    def opened(self, queues: Iterable[str], until: float) -> None:
        """Note that these gates are open until then, by `monotonic()`."""
        self._open_until |= dict.fromkeys(queues, until)

    def forget(self) -> None:
        """Forget all gates: another server may answer from now on, where no gate is open."""
        self._open_until.clear()
