"""Claims that find out which of the jobs cannot be claimed, and take the others.

A trigger or a unique index of the application's may refuse a row, and with it the claim of all; or a trigger returns NULL, and
the row stays as it is without a word.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ... import operations
from ...context import ClaimedJob
from ...log import get_logger
from ...models import Job
from ...operations import Fault
from ..connections.deadline import Deadline
from ..connections.service import Connector, service_limit
from .left_out import LeftOut

__all__ = ["CarefulClaims", "may_be_a_rows"]

logger = get_logger(__name__)

#: As many jobs are looked at in one transaction.
_AT_ONCE = 100
#: Seconds after which a transaction leaves to the next one what it has not come to.
_SECONDS = 1.0
#: As many are named in the log, in one transaction.
_NAMED = 20
_HIDDEN = "its UPDATE changes no row, so perhaps a trigger returns NULL for it"


def may_be_a_rows(error: BaseException) -> bool:
    """Whether a claim may have failed by one of its rows."""
    return isinstance(error, DBAPIError) and operations.fault_of(error) in {Fault.ROW, Fault.REFUSED}


@dataclass(frozen=True, slots=True)
class CarefulClaims:
    """Claims jobs apart from the others, each in a transaction with `watch` over it. What cannot be claimed is `left_out`."""

    connector: Connector
    deadline: Deadline
    left_out: LeftOut
    worker: str
    lease: float
    job: type[Job] = Job

    def claim(self, connection: Connection, queue: str, most: int) -> tuple[bool, list[ClaimedJob]]:
        """Claim at most so many due jobs of this queue. Whether there were any; and those that could be claimed."""
        with self._begin(connection):
            found = operations.lock_due(connection, {queue: _AT_ONCE}, but=self.left_out.ids(), job=self.job)
            jobs, refused = self._claim(connection, list(found), most)
        self._leave_out(found, refused)
        return bool(found), jobs

    def claim_again(self, connection: Connection, left_out: Mapping[int, str]) -> list[ClaimedJob]:
        """Claim these that were left out, by id the queue, as far as it can be done by now."""
        began = monotonic()
        with self._begin(connection):
            found = operations.lock_these(connection, list(left_out), job=self.job)
            jobs, refused = self._claim(connection, found, len(found))
        self.left_out.forget(left_out.keys() - set(found))
        self._leave_out(left_out, refused)
        self.left_out.claimed(job.id for job in jobs)
        self.left_out.rest(monotonic() - began, in_vain=len(refused))
        return jobs

    def _claim(self, connection: Connection, ids: Sequence[int], most: int) -> tuple[list[ClaimedJob], dict[int, str]]:
        """Claim `most` of these, which are locked. Those that were claimed, and why others cannot be.

        In their order, for the claim of one may be why another is refused: fewer at a time where some are refused, and
        more again where none are.
        """
        jobs: list[ClaimedJob] = []
        refused: dict[int, str] = {}
        until = monotonic() + min(_SECONDS, service_limit(self.lease) / 2)
        done, size = 0, most
        while done < len(ids) and len(jobs) < most and monotonic() < until:
            part = ids[done : done + min(size, most - len(jobs))]
            try:
                with connection.begin_nested():
                    taken = operations.claim_these(connection, part, worker=self.worker, lease=self.lease, job=self.job)
            except DBAPIError as error:
                if not may_be_a_rows(error):
                    raise
                size = max(len(part) // 2, 1)
                if len(part) > 1:
                    continue
                refused[part[0]] = str(error.orig)
            else:
                size *= 2
                jobs += taken
                refused |= dict.fromkeys(set(part) - {job.id for job in taken}, _HIDDEN)
            done += len(part)
        return jobs, refused

    def _leave_out(self, queues: Mapping[int, str], refused: Mapping[int, str]) -> None:
        new = [one for one in refused if self.left_out.refuse(one, queues[one])]
        for one in new[:_NAMED]:
            logger.error("job %d cannot be claimed; it is left out for a while: %s", one, refused[one])
        if len(new) > _NAMED:
            logger.error("%d more jobs cannot be claimed, and are left out for a while", len(new) - _NAMED)
        if new and self.left_out.full:
            logger.error(
                "%d jobs are left out, and no more can be: those that are due behind them wait", len(self.left_out)
            )

    @contextmanager
    def _begin(self, connection: Connection) -> Generator[None]:
        with self.deadline.over(connection), self.connector.begin(connection):
            # A deferred constraint would refuse only at the commit, and with it everything.
            connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
            yield
