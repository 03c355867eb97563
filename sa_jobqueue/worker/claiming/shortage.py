"""Queues that gave fewer jobs than were wanted: when each is polled again, and whether the worker is idle."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from operator import attrgetter
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...arguments.context import ClaimedJob
from ...sql.claims import Fault, Point, Slot, fault_of, is_limits_changed
from ...sql.workers import serves
from ...util.log import get_logger
from ..connections.service import Connector
from .demand import Demand, Gates
from .limited import LimitedQueues
from .poison.jobs import PoisonJobs
from .poison.skipped import SkippedJobs
from .workflows import MovingWorkflows

logger = get_logger(__name__)

#: Leases after start by which a worker has searched for expired leases: it waits one healthy lease, then at most a quarter (half, if
#: the lease is short). One second is added.
_RESCUED_BY = 1.5
#: Expired leases that are searched for jobs of our queues.
_LIMIT = 1_000


class ExpiredJobs:
    """The jobs of `queues` whose leases have run out. Only for the claimer's thread, except `begin`.

    During its first lease a worker rescues nothing, unless another worker was there before. Workers that end sooner, for example those
    that cron starts, would never rescue anything.
    """

    def __init__(self, connector: Connector, queues: Collection[str]) -> None:
        self._connector, self._queues = connector, queues
        self._rescued_by = 0.0
        """When maintenance will have rescued the jobs that it can, by `monotonic()`."""
        self._awaited = False
        """Whether there were such jobs at the last call of `awaited`."""

    def begin(self) -> None:
        """Count from now on, because the worker starts."""
        self._rescued_by = monotonic() + _RESCUED_BY * self._connector.lease + 1.0

    def awaited(self, connection: sa.Connection) -> bool:
        """Whether such jobs will be due soon, or may have become due since the last call."""
        before, self._awaited = self._awaited, monotonic() < self._rescued_by and self._are_there(connection)
        if self._awaited and not before:
            most = self._rescued_by - monotonic()
            logger.info(
                "nothing is due but jobs that a dead worker held: staying to rescue them, for at most %.0f s", most
            )
        return self._awaited or before

    def _are_there(self, connection: sa.Connection) -> bool:
        with self._connector.begin_one(connection):
            lost = self._connector.store.expired(connection, limit=_LIMIT)
        return any(serves(self._queues, found.queue) for found in lost)


# ---- Where a claim begins: behind the last job that was claimed, not at the front of the index.

#: A claim begins at the front again after 20 times as long as the last such claim took, which costs at most 5 % of the time, ...
_SHARE = 20
#: ... and after this many seconds, at least and at most: a job that became visible behind a point (because its transaction committed
#: late, or it was given back) starts within a second.
_SOONEST, _LATEST = 0.05, 0.8


class ResumePoints:
    """By slot, the (run_at, id) of the last job that was claimed there. Only for the claimer's thread.

    A claim begins at the front of all its queues, or of none. Each queue has a time of its own for that: a busy queue is claimed
    from far more often, and with a common time it would use that up while the others are not polled.
    """

    def __init__(self) -> None:
        self._points: dict[Slot, Point] = {}
        self._sweep_at: dict[str, float] = {}

    def sweep_at(self, queue: str) -> float:
        """When a claim from this queue begins at the front again, by the monotonic clock."""
        return self._sweep_at.get(queue, 0.0)

    def keep(self, queues: Container[str]) -> None:
        """Forget the points of all other queues."""
        self._points = {slot: point for slot, point in self._points.items() if slot[0] in queues}
        self._sweep_at = {queue: at for queue, at in self._sweep_at.items() if queue in queues}

    def begin(self, queues: Iterable[str]) -> Mapping[Slot, Point] | None:
        """The points behind which to claim from these queues now; None: from the front."""
        now = monotonic()
        sweeps = not self._points or any(self.sweep_at(queue) <= now for queue in queues)
        return None if sweeps else self._points

    def end(self, queues: Iterable[str], jobs: Sequence[ClaimedJob], seconds: float, *, swept: bool) -> None:
        """Note the jobs that were claimed from these queues, in the order of `Store.claim`, in `seconds`. `swept`: from the front."""
        if swept:
            later = monotonic() + min(max(_SHARE * seconds, _SOONEST), _LATEST)
            self._sweep_at |= dict.fromkeys(queues, later)
        last: dict[Slot, Point] = {(job.queue, job.priority): (job.run_at, job.id) for job in jobs}
        for slot, point in last.items():
            if swept and point < self._points.get(slot, point):
                self._sweep_at[slot[0]] = 0.0  # a job was before the point, and there may be more
            else:
                self._points[slot] = point


# ---- When no poll of an idle queue finds a job any more: a statement for all of them, every few seconds.

#: Seconds between two surveys: at first, and at most. With a short lease, jobs are to be found sooner: in a twelfth of it.
_FIRST_SURVEY, _LAST_SURVEY, _PARTS_OF_LEASE = 1.0, 5.0, 12.0
#: Seconds, at least, between two surveys that announcements ask for.
_APART = 0.25


class Surveys:
    """Takes the place of the polls of empty queues where announcements are heard: it finds out when a job is due there, and keeps the gates
    open. It also reads what there is for maintenance to do, and passes it to `tell`, with the time by which the next survey is made.

    Only for the claimer's thread, except `ask`. `poll`: seconds between two polls; if they are fewer than 1, or as many as between two
    surveys, there are no surveys.
    """

    def __init__(
        self,
        connector: Connector,
        demand: Demand,
        *,
        gates: Gates,
        limited: LimitedQueues,
        skipped: SkippedJobs,
        poll: float,
        listening: Callable[[], bool],
        tell: Callable[[Collection[str], float], None],
    ) -> None:
        self._connector, self._demand, self._gates = connector, demand, gates
        self._limited, self._skipped = limited, skipped
        self._listening, self._tell = listening, tell
        self._every = min(_LAST_SURVEY, connector.lease / _PARTS_OF_LEASE)
        self.any = _FIRST_SURVEY <= poll < self._every
        """Whether surveys are made."""
        self._covered: set[str] = set()
        """The queues that are not polled."""
        self._at, self._wait, self._done_at = math.inf, _FIRST_SURVEY, -math.inf
        self._asked = False
        """Whether a job was announced that is due soon. Set by any thread, reset by the claimer's."""

    def ask(self) -> None:
        """Note that a job was announced that is due soon. For any thread; wake the claimer after it."""
        self._asked = True

    def next_at(self) -> float | None:
        """When the next survey is due, by `monotonic()`; None: none is due."""
        if not self._covered or not self._demand.may_claim:
            return None
        return min(self._at, self._done_at + _APART) if self._asked else self._at

    def cover(self, queue: str) -> None:
        """Poll this queue no more, because it was found empty several times."""
        if not self._covered:
            self._at, self._wait = math.inf, _FIRST_SURVEY
        self._covered.add(queue)
        self._demand.timers[queue].rest()
        self._at = min(self._at, self._done_at + _FIRST_SURVEY)

    def uncover(self, queues: Iterable[str] | None = None) -> None:
        """Poll these queues again; None: all."""
        self._covered = set() if queues is None else self._covered.difference(queues)

    def make(self, connection: sa.Connection) -> None:
        """Make a survey, if it is due, and set the timers of the queues."""
        at, began = self.next_at(), monotonic()
        if at is None or at > began:
            return
        limited = {queue for queue in self._covered if self._limited.has(queue)}
        self._poll(limited if self._listening() else self._covered)
        if not self._covered:
            return
        queues, seconds = sorted(self._covered), 2 * self._every
        self._asked = False  # reset first: what is announced meanwhile is read next time
        is_complete = self._gates.are_open(queues)
        try:
            with self._connector.begin_one(connection):
                found = self._connector.store.survey(
                    connection, queues, but=self._skipped.ids(), known=self._limited.known, seconds=seconds
                )
        except BaseException as error:
            self._poll(self._covered)
            if not isinstance(error, DBAPIError) or is_limits_changed(error) or fault_of(error) is Fault.AWAY:
                raise
            self.any = fault_of(error) is Fault.LATE
            logger.warning("queues are polled one by one: a statement for all of them failed (%s)", error.orig)
            return
        self._gates.opened(queues, began + seconds)
        now = self._done_at = monotonic()
        for queue in queues:
            self._demand.timers[queue].not_before(now + found.due_in.get(queue, math.inf))
        any_due = min(found.due_in.values(), default=math.inf) <= 0
        self._wait = _FIRST_SURVEY if any_due else min(2 * self._wait, self._every)
        # A job that was committed while a gate was closed has woken no worker.
        self._at = now + self._wait * random.uniform(0.9, 1.0) if is_complete else now
        self._tell(found.work, self._at + _FIRST_SURVEY)

    def _poll(self, queues: set[str]) -> None:
        for queue in queues:
            self._demand.timers[queue].now()
        self.uncover(queues)


_QUEUE = attrgetter("queue")


class Shortage:
    """Sets the timers of `demand` after each claim. Only for the claimer's thread.

    `poll`: seconds between two polls of an empty queue at most. `listening()`: whether announcements of new jobs are heard.
    `idle()` is called when no job is due and none runs. `put_back()` puts back suspended jobs that can go on.
    """

    def __init__(
        self,
        demand: Demand,
        *,
        resume: ResumePoints,
        gates: Gates,
        poison: PoisonJobs,
        expired: ExpiredJobs,
        limited: LimitedQueues,
        workflows: MovingWorkflows,
        surveys: Surveys,
        poll: float,
        listening: Callable[[], bool],
        idle: Callable[[], None] | None,
        put_back: Callable[[sa.Connection], None],
    ) -> None:
        self._demand, self._resume, self._gates, self._poison = demand, resume, gates, poison
        self._expired, self._limited, self._workflows, self._surveys = expired, limited, workflows, surveys
        self._poll, self._listening, self._idle, self._put_back = poll, listening, idle, put_back
        self._has_put_back = False
        self._dry: set[str] = set()
        """Queues that had no job in reach when nothing ran, since `_dry_at` jobs were claimed in all."""
        self._dry_at = 0

    def after_claim(
        self, connection: sa.Connection, wanted: Mapping[str, int], jobs: list[ClaimedJob], *, quiet: bool, swept: bool
    ) -> bool:
        """Decide when each of the `wanted` queues is polled again, after a claim that returned these `jobs`.

        `quiet`: nothing ran when the claim began. `swept`: it began at the front of the queues. Returns whether claims overlook a job that is due.
        """
        if jobs:
            self._poison.jobs_come()
        self._surveys.uncover(wanted)
        got = Counter(map(_QUEUE, jobs)) if len(wanted) > 1 else dict.fromkeys(wanted, len(jobs))
        timers = self._demand.timers
        short = [name for name, asked in wanted.items() if got[name] < asked and not timers[name].notified]
        for name in wanted:
            if name not in short:
                timers[name].now()
            elif got[name]:
                timers[name].reset()
        if not short:
            return False
        return self._poll_later(connection, short, dry=quiet and not jobs and self._are_dry(short), swept=swept)

    def leave_if_dry(self, connection: sa.Connection, short: Collection[str]) -> None:
        """After a claim without jobs while none ran: if neither these queues nor others have a job in reach, the worker is idle."""
        if self._idle is not None and self._are_dry(short):
            self._leaves(connection, stays=self._expired.awaited(connection))

    def _are_dry(self, short: Collection[str]) -> bool:
        """Whether no queue has a job in reach, when no job runs and the `short` queues have none. To find out may take several claims:
        where queues share slots, a claim asks for no more queues than there are slots.
        """
        if self._dry_at != self._demand.claimed:
            self._dry, self._dry_at, self._has_put_back = set(), self._demand.claimed, False
        self._dry.update(short)
        return all(name in self._dry or timer.is_held for name, timer in self._demand.timers.items())

    def _poll_later(self, connection: sa.Connection, short: list[str], *, dry: bool, swept: bool) -> bool:
        """`dry`: no queue has a due job, and nothing runs. Returns whether claims overlook a job."""
        timers = self._demand.timers
        if not swept:  # there may be jobs behind the points
            for name in short:
                timers[name].not_before(self._resume.sweep_at(name))
            return False
        if self._demand.announced:
            self._demand.announced = False
            self._poison.jobs_come()
        leaves = dry and self._idle is not None
        # Before the search, which sees jobs that are rescued meanwhile.
        stays = leaves and self._expired.awaited(connection)
        asked = self._all_dry() if leaves else short
        found = self._poison.search(connection, asked, at_once=leaves)
        if found.any_due:  # if the job has just come, the next claim brings it
            for name in asked:
                timers[name].now()
        elif self._listening() and self._gates.ask(connection, short, timers):
            pass  # poll once more: jobs that were committed before we asked have woken no worker
        elif not (leaves and self._leaves(connection, stays=stays)):
            longest = min(self._poll, self._gates.longest_poll) if self._listening() else self._poll
            surveys = self._surveys.any and self._listening() and self._idle is None
            for name in short:
                if surveys and timers[name].is_rare(longest):
                    self._surveys.cover(name)
                else:
                    timers[name].back_off(longest)
        return found.any_overlooked

    def _all_dry(self) -> list[str]:
        """The queues without limits that were found dry."""
        return [name for name in self._dry & self._demand.timers.keys() if not self._limited.has(name)]

    def _looks_again(self, connection: sa.Connection) -> bool:
        """Put back suspended jobs that can go on, and ask all queues again. It does so once after each time that jobs were found."""
        if self._has_put_back or self._idle is None:
            return False
        self._put_back(connection)
        self._has_put_back = True
        self._dry.clear()
        for timer in self._demand.timers.values():
            timer.now()
        return True

    def _leaves(self, connection: sa.Connection, *, stays: bool) -> bool:
        """When no queue has a job in reach and none runs: the worker is idle, unless a skipped job could be claimed now, or it `stays`
        to rescue a dead worker's jobs. Returns whether there is more to do.
        """
        if self._poison.claim_skipped(connection, at_once=True) or self._workflows.finds_more(connection):
            return True
        if self._demand.finds_more(connection) or self._looks_again(connection):
            return True
        if self._idle is not None and not stays:
            self._idle()
        return False
