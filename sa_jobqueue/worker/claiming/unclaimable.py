"""Claiming what an ordinary claim cannot: queues where it fails by one job, and the jobs that are skipped since then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import sqlalchemy as sa

from ...context import ClaimedJob
from .bisection import BisectingClaims
from .connection import ClaimerConnection
from .demand import Demand
from .fetch import Fetcher
from .isolate import Suspects
from .skipped import SkippedJobs

__all__ = ["Bisected", "UnclaimableJobs"]

#: Seconds for which one round claims by bisection.
_BISECTING = 1.0


class Bisected(NamedTuple):
    """What a round of claims by bisection came to."""

    any_skipped: bool
    """A job was found that cannot be claimed: there may be more."""
    any_claimed: bool
    short: Collection[str]
    """Queues with no job in reach."""


@dataclass(frozen=True, slots=True)
class UnclaimableJobs:
    """Claims on `own` connection, and hands over what it got. Only for the claimer's thread."""

    own: ClaimerConnection
    demand: Demand
    skipped: SkippedJobs
    suspects: Suspects
    claims: BisectingClaims
    fetcher: Fetcher

    def next_at(self, queues: Collection[str]) -> float | None:
        """When a skipped job of these queues is tried again, by `monotonic()`; None: never."""
        return self.skipped.next_at(queues, one_waiting=self.suspects.one_may_run) if self.skipped else None

    def claim_skipped(self, connection: sa.Connection, *, at_once: bool = False) -> bool:
        """Claim those of the skipped jobs that can be claimed by now. Returns whether there were some."""
        if not self.skipped:
            return False
        free = self.demand.free()
        due = self.skipped.due(free, one_waiting=self.suspects.one_may_run, at_once=at_once) if free else {}
        due = dict(islice(due.items(), self.demand.left))
        if not due:
            return False
        any_claimed = False
        self.own.in_doubt = True
        for jobs, began in self.claims.claim_skipped(connection, due):
            self._take_over(connection, jobs, began)
            any_claimed = any_claimed or bool(jobs)
        self.own.in_doubt = False
        if any_claimed:
            self.demand.release(name for name in self.demand.timers if self.skipped.has_room(name))
        return any_claimed

    def claim_by_bisection(self, connection: sa.Connection, wanted: Mapping[str, int]) -> Bisected:
        """Skip the jobs that cannot be claimed, claim the others, and hold the queues where neither can be done."""
        any_skipped = any_claimed = False
        short: set[str] = set()
        self.own.in_doubt = True
        for queue, found in self.claims.claim_all(connection, wanted, seconds=_BISECTING):
            self._take_over(connection, found.jobs, found.began)
            any_skipped = any_skipped or found.newly_skipped > 0
            any_claimed = any_claimed or bool(found.jobs)
            if found.no_room:
                self.demand.timers[queue].hold()
            elif not found.any_due:
                short.add(queue)
        self.own.in_doubt = False
        return Bisected(any_skipped, any_claimed, short)

    def _take_over(self, connection: sa.Connection, jobs: list[ClaimedJob], began: float) -> None:
        self.fetcher.hand_over(connection, self.suspects.part(connection, jobs), claimed_at=began)
