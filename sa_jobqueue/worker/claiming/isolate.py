"""Suspects: jobs whose workers died twice. At most one of them runs in this process at a time.

One of them may be what kills workers. If they were rescued together and claimed together, all would die with it each time, and
all would end as failed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...context import ClaimedJob
from ...lifecycle import Rules, decide
from ...outcomes import Released
from ...store import Answer
from ..connections.service import Connector
from ..running.run import Runs
from ..running.writer import OutcomeWriter
from .bisection import may_be_a_jobs
from .skipped import SkippedJobs

__all__ = ["Suspects"]

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
        """Whether none is held here, so that one may be claimed."""
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
            # Either one was refused, and the writer finds out which; or a claim that did not see ours has the row locked.
            if answers.get(change.id, Answer.LOCKED) is Answer.LOCKED:
                self.writer.add(change)
        gone = {job.id for job in back}
        return [job for job in jobs if job.id not in gone]

    def _until_later(self, job: ClaimedJob) -> Released:
        if self.skipped.add_waiting(job.id, job.queue):
            return Released()
        return Released(self.connector.lease * random.uniform(0.25, 0.5))
