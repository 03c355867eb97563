"""Handing claimed jobs over, each as soon as it is whole: long arguments and meta do not come with the claim, and are
fetched one job after the other.

A job that cannot be read keeps nobody: it is set aside, and the others go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ... import operations
from ...context import ClaimedJob
from ...errors import PayloadError
from ...log import get_logger
from ...models import Job
from ...outcomes import Outcome, Released, Undecodable
from ...retry import describe
from ..connections.deadline import Deadline
from ..connections.service import Connector

__all__ = ["Fetcher"]

logger = get_logger(__name__)

#: A job that did not come goes back for so many seconds, and up to twice as many: it may be why the time or the memory did not
#: suffice, or why the connection broke, and would hold up the others again.
_LATER = 15.0


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Hands jobs to `take_in`, and to `set_aside` those that are not run, with what comes of them.

    `take_in` hears of when they were claimed, too. `watch`: over the round in which this happens; each fetch has a time of
    its own. `most`: bytes of text that are fetched of a job's arguments, and of its meta. `leaving()`: nothing is to be begun.
    """

    connector: Connector
    deadline: Deadline
    take_in: Callable[[list[ClaimedJob], float], None]
    set_aside: Callable[[ClaimedJob, Outcome], None]
    lease: float
    most: int
    leaving: Callable[[], bool]
    job: type[Job] = Job

    def hand_over(self, connection: Connection, jobs: list[ClaimedJob], *, claimed_at: float) -> None:
        """Hand over what was claimed, first what is whole.

        Only what is handed over is renewed. So what was not fetched within a third of a lease goes back, but for one
        job, with which there is an end to it however slow the network is.
        """
        whole = [job for job in jobs if job.args is not None and job.meta is not None]
        if whole:
            self.take_in(whole, claimed_at)
        if len(whole) == len(jobs):
            return
        for number, job in enumerate(job for job in jobs if job.args is None or job.meta is None):
            if self.leaving() or (number and monotonic() >= claimed_at + self.lease / 3):
                self.set_aside(job, Released())
            else:
                self._fetch(connection, job, claimed_at)

    def _fetch(self, connection: Connection, job: ClaimedJob, claimed_at: float) -> None:
        try:
            with self.deadline.over(connection), self.connector.begin_one(connection):
                texts = operations.fetch_args(connection, job.id, most=self.most, job=self.job)
        except DBAPIError as error:
            if operations.is_data_fault(error):
                said = f"its arguments or its meta cannot be turned into text, of which at most {self.most:,} bytes are read"
                self._refuse(job, f"{said}: {error.orig}")
                return
            self.set_aside(job, Released(_LATER * random.uniform(1, 2)))
            if not operations.is_too_much(error):
                raise
            logger.warning("job %d goes back: its arguments and meta did not come (%s)", job.id, error.orig)
            return
        if texts is None:  # deleted since its claim
            return
        if texts.args is None or texts.meta is None:
            sizes = f"its arguments have {texts.args_bytes:,} bytes as JSON text, and its meta {texts.meta_bytes:,}"
            self._refuse(job, f"{sizes}; at most {self.most:,} of each are read")
        else:
            self.take_in([job._replace(args=texts.args, meta=texts.meta)], claimed_at)

    def _refuse(self, job: ClaimedJob, why: str) -> None:
        reason = replace(describe(PayloadError(why)), traceback="")
        logger.error(
            "job %d: %s", job.id, reason.message, extra={"job_id": job.id, "task": job.task, "queue": job.queue}
        )
        self.set_aside(job, Undecodable(reason))
