"""Queues that gave fewer jobs than were wanted: when each is polled again, and whether the worker is idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter

import sqlalchemy as sa

from ...context import ClaimedJob
from .demand import Demand
from .drain import ExpiredJobs
from .gates import Gates
from .limited import LimitedQueues
from .overlooked import OverlookedJobs
from .resume import ResumePoints
from .unclaimable import UnclaimableJobs
from .workflows import MovingWorkflows

__all__ = ["Shortage"]

_QUEUE = attrgetter("queue")


class Shortage:
    """Sets the timers of `demand` after each claim. Only for the claimer's thread.

    `poll`: seconds between two polls of an empty queue at most. `listening()`: whether announcements of new jobs are heard.
    `idle()` is called when nothing is due and nothing runs.
    """

    def __init__(
        self,
        demand: Demand,
        *,
        resume: ResumePoints,
        gates: Gates,
        overlooked: OverlookedJobs,
        unclaimable: UnclaimableJobs,
        expired: ExpiredJobs,
        limited: LimitedQueues,
        workflows: MovingWorkflows,
        poll: float,
        listening: Callable[[], bool],
        idle: Callable[[], None] | None,
    ) -> None:
        self._demand, self._resume, self._gates, self._overlooked = demand, resume, gates, overlooked
        self._unclaimable, self._expired, self._limited, self._workflows = unclaimable, expired, limited, workflows
        self._poll, self._listening, self._idle = poll, listening, idle
        self._dry: set[str] = set()
        """Queues that had no job in reach when nothing ran, since `_dry_at` jobs were claimed in all."""
        self._dry_at = 0

    def after_claim(
        self, connection: sa.Connection, wanted: Mapping[str, int], jobs: list[ClaimedJob], *, quiet: bool
    ) -> bool:
        """Decide when each of the `wanted` queues is polled again, after a claim that returned these `jobs`.

        `quiet`: nothing ran when the claim began. Returns whether claims overlook a job that is due.
        """
        if jobs:
            self._overlooked.jobs_come()
        got = Counter(map(_QUEUE, jobs)) if len(wanted) > 1 else dict.fromkeys(wanted, len(jobs))
        timers = self._demand.timers
        short = [name for name, asked in wanted.items() if got[name] < asked and not timers[name].notified]
        for name in wanted:
            if name not in short:
                timers[name].now()
            elif got[name]:
                timers[name].reset()
        return bool(short) and self._poll_later(connection, short, dry=quiet and not jobs and self._are_dry(short))

    def leave_if_dry(self, connection: sa.Connection, short: Collection[str]) -> None:
        """Nothing ran and nothing was claimed, and these queues have no job in reach: if no other has one either, the worker is idle."""
        if self._idle is not None and self._are_dry(short):
            self._leaves(connection, stays=self._expired.awaited(connection))

    def _are_dry(self, short: Collection[str]) -> bool:
        """Nothing runs, and the `short` queues have no job in reach: whether no other queue has a job either. That may take several
        claims: where queues share slots, a claim asks for no more queues than there are slots.
        """
        if self._dry_at != self._demand.claimed:
            self._dry, self._dry_at = set(), self._demand.claimed
        self._dry.update(short)
        return all(name in self._dry or timer.is_held for name, timer in self._demand.timers.items())

    def _poll_later(self, connection: sa.Connection, short: list[str], *, dry: bool) -> bool:
        """`dry`: no queue has a due job, and nothing runs. Returns whether claims overlook a job."""
        timers = self._demand.timers
        if not self._resume.swept:  # there may be jobs behind the points
            for name in short:
                timers[name].not_before(self._resume.sweep_at(name))
            return False
        if self._demand.announced:
            self._demand.announced = False
            self._overlooked.jobs_come()
        leaves = dry and self._idle is not None
        # Before the look, which sees what is rescued meanwhile.
        stays = leaves and self._expired.awaited(connection)
        asked = self._all_dry() if leaves else short
        looked = self._overlooked.look(connection, asked, at_once=leaves)
        if looked.any_due:  # if it has come since, the next claim brings it
            for name in asked:
                timers[name].now()
        elif self._listening() and self._gates.ask(connection, short, timers):
            pass  # poll once more: jobs that were committed before we asked have woken no worker
        elif not (leaves and self._leaves(connection, stays=stays)):
            longest = min(self._poll, self._gates.longest_poll) if self._listening() else self._poll
            for name in short:
                timers[name].back_off(longest)
        return looked.any_overlooked

    def _all_dry(self) -> list[str]:
        """The queues without limits that were found dry."""
        return [name for name in self._dry & self._demand.timers.keys() if not self._limited.has(name)]

    def _leaves(self, connection: sa.Connection, *, stays: bool) -> bool:
        """No queue has a job in reach, and nothing runs: so the worker is idle, unless one of the skipped jobs could be claimed
        now, or it `stays` to rescue a dead worker's. Returns whether one was claimed.
        """
        if self._unclaimable.claim_skipped(connection, at_once=True) or self._workflows.finds_more(connection):
            return True
        if self._demand.finds_more(connection):
            return True
        if self._idle is not None and not stays:
            self._idle()
        return False
