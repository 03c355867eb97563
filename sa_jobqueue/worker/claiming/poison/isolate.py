"""Suspects: jobs whose workers died twice. At most one of them runs in this process at a time.

One of them may be what kills workers. If they were rescued together and claimed together, all would die with it each time, and
all would end as failed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ....arguments.context import ClaimedJob
from ....rules.lifecycle import Rules, decide
from ....rules.outcomes import Released
from ....sql.apply import Answer
from ...connections.service import Connector
from ...running.run import Runs
from ...running.writer import OutcomeWriter
from ..connection import ClaimerConnection
from ..demand import Demand
from ..fetch import Fetcher
from ..limited import LimitedQueues
from .bisection import BisectingClaims, may_be_a_jobs
from .skipped import SkippedJobs

#: A job whose workers have died this often is a suspect.
_SUSPECT = 2


@dataclass(frozen=True, slots=True)
class Suspects:
    """Keeps suspects apart. Those that must wait go back to the queue: another worker may claim them, and this one has them
    `skipped`.
    """

    connector: Connector
    runs: Runs
    writer: OutcomeWriter
    skipped: SkippedJobs
    max_rescues: int

    @property
    def _often(self) -> int:
        return min(_SUSPECT, max(self.max_rescues - 1, 1))

    @property
    def one_may_run(self) -> bool:
        """Whether no suspect is held here, so that a suspect may be claimed."""
        often = self._often
        return not any(run.job.rescues >= often for run in self.runs)

    def part(self, connection: sa.Connection, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """Keep at most one suspect among these claimed jobs; the others go back before any of them is run."""
        often = self._often
        suspects = [job for job in jobs if job.rescues >= often]
        if not suspects:
            return jobs
        back = suspects[1 if self.one_may_run else 0 :]
        changes = [decide(job, self._until_later(job), Rules(), random=0.5) for job in back]
        answers: dict[int, Answer] = {}
        try:
            with self.connector.begin(connection):
                answers = self.connector.store.apply(connection, changes)
        except DBAPIError as error:
            if not may_be_a_jobs(error):
                raise
        for change in changes:
            # Either the database refused a change, and the writer finds out which; or a claim that did not see ours has locked the row.
            if answers.get(change.id, Answer.LOCKED) is Answer.LOCKED:
                self.writer.add(change)
        gone = {job.id for job in back}
        return [job for job in jobs if job.id not in gone]

    def _until_later(self, job: ClaimedJob) -> Released:
        if self.skipped.add_waiting(job.id, job.queue):
            return Released()
        return Released(self.connector.lease * random.uniform(0.25, 0.5))


# ---- Claiming what an ordinary claim cannot: queues where it fails by one job, and the jobs that are skipped since then.

#: Seconds for which one round claims by bisection.
_BISECTING = 1.0


class Bisected(NamedTuple):
    """The result of a round of claims by bisection."""

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


# ---- Whether claims overlook a due job: they return fewer jobs than there are, without an error.

#: Seconds between two searches while jobs come. Without jobs the pause doubles each time, up to the second number.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0


class Looked(NamedTuple):
    """What a search found."""

    any_due: bool
    """A job is due that the last claim did not return. It may have come since."""
    any_overlooked: bool
    """A job was already there at the last search: a claim since then has overlooked it."""


class OverlookedJobs:
    """Searches for due jobs that are not `skipped` after claims that returned too few. Only for the claimer's thread."""

    def __init__(self, connector: Connector, skipped: SkippedJobs, limited: LimitedQueues) -> None:
        self._connector, self._skipped, self._limited = connector, skipped, limited
        self._looked, self._wait = monotonic(), _FIRST_PAUSE
        self._found: frozenset[int] = frozenset()

    def jobs_come(self) -> None:
        """Some were claimed, or announced."""
        self._wait = _FIRST_PAUSE

    def look(self, connection: sa.Connection, queues: Iterable[str], *, at_once: bool) -> Looked:
        """Search these queues for such jobs, if that is due or `at_once` is set."""
        now, before = monotonic(), self._found
        ones = {queue: 1 for queue in queues if self._skipped.has_room(queue)}
        if not ones or not (before or at_once or now >= self._looked + self._wait):
            return Looked(False, False)
        self._looked, self._wait = now, min(2 * self._wait, _LONGEST_PAUSE)
        with self._connector.begin_one(connection):
            self._found = frozenset(
                self._connector.store.lock_due(connection, ones, but=self._skipped.ids(), known=self._limited.known)
            )
        return Looked(bool(self._found), bool(self._found & before))
