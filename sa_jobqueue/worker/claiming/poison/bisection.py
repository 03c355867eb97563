"""Claims by bisection: they find the jobs that cannot be claimed, and claim the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ....arguments.context import ClaimedJob
from ....sql.claims import Fault, fault_of, is_too_much
from ....util.log import get_logger
from ...connections.pool import Deadline
from ...connections.service import Connector, setting
from ..limited import LimitedQueues
from ..recovery import may_be_a_jobs
from .skipped import SkippedJobs

logger = get_logger(__name__)

#: Jobs looked at in one transaction.
_AT_ONCE = 100
#: Seconds after which a transaction leaves the rest to the next.
_SECONDS = 1.0
#: Jobs named in the log, in one transaction.
_NAMED = 20
_IGNORED = "its UPDATE changes no row, so perhaps a trigger returns NULL for it"


def _is_late(error: DBAPIError) -> bool:
    return fault_of(error) is Fault.LATE and is_too_much(error)


class Found(NamedTuple):
    """The result of a claim by bisection in a queue."""

    any_due: bool
    jobs: list[ClaimedJob]
    """The claimed jobs."""
    began: float
    """When it began, by `monotonic()`."""
    newly_skipped: int
    no_room: bool
    """Some jobs can neither be claimed nor skipped: those that are due behind them stay out of reach."""


@dataclass(frozen=True, slots=True)
class BisectingClaims:
    """Claims in transactions of their own, each with a deadline of its own. Jobs that cannot be claimed go to `skipped`."""

    connector: Connector
    deadline: Deadline
    skipped: SkippedJobs
    limited: LimitedQueues
    worker: str

    def claim_all(
        self, connection: sa.Connection, wanted: Mapping[str, int], *, seconds: float
    ) -> Iterator[tuple[str, Found]]:
        """Claim at most `wanted[queue]` due jobs of each queue, skip those that cannot be claimed, and begin no transaction
        after `seconds`. The caller must take over each part before the next is claimed.
        """
        until, left = monotonic() + seconds, dict(wanted)
        while left and monotonic() < until:
            for queue, most in list(left.items()):
                found = self._claim_some(connection, queue, most)
                left[queue] -= len(found.jobs)
                if not found.any_due or not left[queue] or found.no_room:
                    del left[queue]
                yield queue, found

    def _claim_some(self, connection: sa.Connection, queue: str, most: int) -> Found:
        began = monotonic()
        with self._begin(connection):
            if self.limited.has(queue):
                due = self.limited.lock_due(connection, queue, most)
            else:
                due = self.connector.store.lock_due(
                    connection, {queue: _AT_ONCE}, but=self.skipped.ids(), known=self.limited.known
                )
            jobs, refused = self._claim(connection, list(due), most)
        new = self._skip(due, refused)
        return Found(bool(due), jobs, began, len(new), no_room=len(new) < len(refused))

    def claim_skipped(
        self, connection: sa.Connection, skipped: Mapping[int, str]
    ) -> Iterator[tuple[list[ClaimedJob], float]]:
        """Claim these skipped jobs, given by id and queue, as far as that is possible by now. In a queue with limits, claim the next
        jobs, skipped or not: which jobs are next depends on what else runs. Each part comes with the time when it began, and the
        caller must take it over before the next is claimed.
        """
        began, in_vain = monotonic(), 0
        # Each limited queue in a transaction of its own: if a transaction locked several in turn, two could wait for each other.
        parts: defaultdict[str | None, dict[int, str]] = defaultdict(dict)
        for job, queue in skipped.items():
            parts[queue if self.limited.has(queue) else None][job] = queue
        for limited, part in parts.items():
            began_part = monotonic()
            with self._begin(connection):
                due = self._lock_skipped(connection, limited, part)
                jobs, refused = self._claim(connection, list(due), len(due))
            in_vain += len(refused)
            self.skipped.forget(part.keys() - due.keys())
            self._skip(due, refused)
            self.skipped.claimed(job.id for job in jobs)
            self.skipped.rest(monotonic() - began, in_vain=in_vain)
            yield jobs, began_part

    def _lock_skipped(self, connection: sa.Connection, limited: str | None, part: Mapping[int, str]) -> dict[int, str]:
        """The jobs of `part` that are due, and their queues. `limited`: their limited queue; None: they are of other queues."""
        if limited is not None:
            return self.limited.lock_due(connection, limited, len(part), tried=part)
        store, queues = self.connector.store, set(part.values())
        return {
            job: part[job] for job in store.lock_these(connection, list(part), queues=queues, known=self.limited.known)
        }

    def _claim(
        self, connection: sa.Connection, ids: Sequence[int], most: int
    ) -> tuple[list[ClaimedJob], dict[int, str]]:
        """Claim `most` of these locked jobs. Returns the claimed jobs, and by id why others could not be claimed.

        They are tried in their order, because the claim of a job may be why another is refused: fewer at a time after a failure,
        more again after a success.
        """
        jobs: list[ClaimedJob] = []
        refused: dict[int, str] = {}
        seconds = min(_SECONDS, self.connector.limit / 2)
        until, any_late = monotonic() + seconds, False
        done, size = 0, most
        while done < len(ids) and len(jobs) < most and (monotonic() < until or not done):
            part = ids[done : done + min(size, most - len(jobs))]
            try:
                with connection.begin_nested():
                    taken = self.connector.store.claim_these(
                        connection, part, worker=self.worker, lease=self.connector.lease
                    )
            except DBAPIError as error:
                late = _is_late(error)
                if not late and not may_be_a_jobs(error):
                    raise
                if late and not any_late:  # it has used up the time of the others
                    until, any_late = monotonic() + seconds, True
                size = 1 if late else max(len(part) // 2, 1)
                if len(part) > 1:
                    continue
                refused[part[0]] = str(error.orig)
            else:
                size *= 2
                jobs += taken
                refused |= dict.fromkeys(set(part) - {job.id for job in taken}, _IGNORED)
            done += len(part)
        return jobs, refused

    def _skip(self, queues: Mapping[int, str], refused: Mapping[int, str]) -> list[int]:
        """Skip the refused jobs from now on. Returns the jobs among them that were not skipped before."""
        new = [job for job in refused if self.skipped.add_unclaimable(job, queues[job], why=refused[job])]
        for job in new[:_NAMED]:
            logger.error("job %d cannot be claimed; it is skipped for a while: %s", job, refused[job])
        if len(new) > _NAMED:
            logger.error("%d more jobs cannot be claimed, and are skipped for a while", len(new) - _NAMED)
        if new and not self.skipped.has_room(queue := queues[new[0]]):
            logger.error(
                "%d jobs are skipped, and no more of queue %r can be: those that are due behind them wait",
                len(self.skipped), queue,
            )  # fmt: skip
        return new

    @contextmanager
    def _begin(self, connection: sa.Connection) -> Generator[None]:
        with self.deadline.over(connection), self.connector.begin(connection):
            # A deferred constraint would refuse only at the commit, and with it everything.
            connection.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
            # Time for one claim that times out, and for the others after it.
            limit = f"{int(self.connector.limit * 250)}ms"
            connection.exec_driver_sql(setting({"statement_timeout": limit}, local=True))
            yield
