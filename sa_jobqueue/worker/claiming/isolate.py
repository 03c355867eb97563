"""Jobs whose workers died twice: one at most runs in this process.

One of them may be what kills workers. Rescued together and claimed together, they would all die with it each time, and all end
with it as failed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ... import operations
from ...context import ClaimedJob
from ...lifecycle import Rules, decide
from ...models import Job
from ...operations import Answer
from ...outcomes import Released
from ...settings import WorkerSettings
from ..connections.service import Connector
from ..running.run import Runs
from ..running.writer import OutcomeWriter
from .careful import may_be_a_rows
from .left_out import LeftOut

__all__ = ["Suspects"]

#: A job whose worker has died so often is not run beside another one of these.
_SUSPECT = 2


@dataclass(frozen=True, slots=True)
class Suspects:
    """Tells them from the others. Those that must wait are back in the queue, for another worker perhaps, and `left_out` here."""

    connector: Connector
    runs: Runs
    writer: OutcomeWriter
    left_out: LeftOut
    settings: WorkerSettings
    job: type[Job] = Job

    @property
    def _often(self) -> int:
        return min(_SUSPECT, max(self.settings.max_rescues - 1, 1))

    @property
    def none_is_held(self) -> bool:
        """Whether one may be claimed."""
        often = self._often
        return not any(run.job.rescues >= often for run in self.runs)

    def part(self, connection: Connection, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """Keep one of them at most; the others go back before any is run."""
        often = self._often
        suspects = [job for job in jobs if job.rescues >= often]
        if not suspects:
            return jobs
        back = suspects[1 if self.none_is_held else 0 :]
        changes = [decide(job, self._until_later(job), Rules(), random=0.5) for job in back]
        answers: dict[int, Answer] = {}
        try:
            with self.connector.begin(connection):
                answers = operations.apply(connection, changes, job=self.job)
        except DBAPIError as error:
            if not may_be_a_rows(error):
                raise
        for change in changes:
            # One is refused, and who writes finds out which; or it is locked by a claim that did not see ours, for a moment.
            if answers.get(change.id, Answer.LOCKED) is Answer.LOCKED:
                self.writer.add(change)
        gone = {job.id for job in back}
        return [job for job in jobs if job.id not in gone]

    def _until_later(self, job: ClaimedJob) -> Released:
        if self.left_out.park(job.id, job.queue):
            return Released()
        return Released(self.settings.lease * random.uniform(0.25, 0.5))
