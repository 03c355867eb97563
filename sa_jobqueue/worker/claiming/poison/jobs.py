"""The jobs that an ordinary claim cannot take: it fails because of one of them, or returns fewer jobs than are due."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from time import monotonic
from typing import NamedTuple

import sqlalchemy as sa

from ...connections.pool import Deadline
from ...connections.service import Connector
from ..connection import ClaimerConnection
from ..demand import Demand
from ..intake import Intake
from ..limited import LimitedQueues
from .bisection import BisectingClaims

#: Seconds for which one round claims by bisection.
_BISECTING = 1.0
#: Seconds between two searches for overlooked jobs while jobs come. Without jobs the pause doubles each time, up to the second number.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0


class Bisected(NamedTuple):
    """The result of a round of claims by bisection."""

    any_skipped: bool
    """A job was found that cannot be claimed: there may be more."""
    any_claimed: bool
    short: Collection[str]
    """Queues with no job in reach."""


class Overlooked(NamedTuple):
    """The result of a search for overlooked jobs."""

    any_due: bool
    """A job is due that the last claim did not return. It may be newer than that claim."""
    any_overlooked: bool
    """A job was already there at the last search: a claim since then has overlooked it."""


class PoisonJobs:
    """Claims them apart from the others, on the claimer's `own` connection, and skips those that cannot be claimed.

    Only for the claimer's thread.
    """

    def __init__(
        self,
        connector: Connector,
        deadline: Deadline,
        *,
        own: ClaimerConnection,
        demand: Demand,
        intake: Intake,
        limited: LimitedQueues,
        worker: str,
    ) -> None:
        self._connector, self._own, self._demand, self._intake, self._limited = connector, own, demand, intake, limited
        self._suspects, self._skipped = intake.suspects, intake.suspects.skipped
        self._claims = BisectingClaims(connector, deadline, self._skipped, limited, worker)
        self._searched, self._wait = monotonic(), _FIRST_PAUSE
        self._found: frozenset[int] = frozenset()

    def next_at(self, queues: Collection[str]) -> float | None:
        """When a skipped job of these queues is tried again, by `monotonic()`; None: never."""
        return self._skipped.next_at(queues, one_waiting=self._suspects.one_may_run) if self._skipped else None

    def claim_skipped(self, connection: sa.Connection, *, at_once: bool = False) -> bool:
        """Claim the skipped jobs that can be claimed by now. Returns whether there were any."""
        if not self._skipped:
            return False
        free = self._demand.free()
        due = self._skipped.due(free, one_waiting=self._suspects.one_may_run, at_once=at_once) if free else {}
        due = dict(islice(due.items(), self._demand.left))
        if not due:
            return False
        any_claimed = False
        self._own.in_doubt = True
        for jobs, began in self._claims.claim_skipped(connection, due):
            self._intake.take(connection, jobs, claimed_at=began)
            any_claimed = any_claimed or bool(jobs)
        self._own.in_doubt = False
        if any_claimed:
            self._demand.release(name for name in self._demand.timers if self._skipped.has_room(name))
        return any_claimed

    def claim_by_bisection(self, connection: sa.Connection, wanted: Mapping[str, int]) -> Bisected:
        """Skip the jobs that cannot be claimed, claim the others, and hold the queues where neither can be done."""
        any_skipped = any_claimed = False
        short: set[str] = set()
        self._own.in_doubt = True
        for queue, found in self._claims.claim_all(connection, wanted, seconds=_BISECTING):
            self._intake.take(connection, found.jobs, claimed_at=found.began)
            any_skipped = any_skipped or found.newly_skipped > 0
            any_claimed = any_claimed or bool(found.jobs)
            if found.no_room:
                self._demand.timers[queue].hold()
            elif not found.any_due:
                short.add(queue)
        self._own.in_doubt = False
        return Bisected(any_skipped, any_claimed, short)

    def jobs_come(self) -> None:
        """Note that jobs were claimed, or announced."""
        self._wait = _FIRST_PAUSE

    def search(self, connection: sa.Connection, queues: Iterable[str], *, at_once: bool) -> Overlooked:
        """Search these queues for due jobs that are not skipped, after a claim that returned too few, if that is due or `at_once` is set."""
        now, before = monotonic(), self._found
        most = {queue: 1 for queue in queues if self._skipped.has_room(queue)}
        if not most or not (before or at_once or now >= self._searched + self._wait):
            return Overlooked(False, False)
        self._searched, self._wait = now, min(2 * self._wait, _LONGEST_PAUSE)
        with self._connector.begin_one(connection):
            self._found = frozenset(
                self._connector.store.lock_due(connection, most, but=self._skipped.ids(), known=self._limited.known)
            )
        return Overlooked(bool(self._found), bool(self._found & before))
