"""Handing claimed jobs over, each as soon as it is whole: long arguments and meta do not come with the claim, and are fetched job
by job.

A job that cannot be read holds up no other: it gets an outcome without being run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...arguments.context import ClaimedJob
from ...errors import PayloadError
from ...rules.failures import describe
from ...rules.lifecycle import extra
from ...rules.outcomes import Released, Undecodable
from ...sql.claims import Fault, fault_of, is_data_fault, is_too_much
from ...sql.unique import started_keys, without_key
from ...util.log import get_logger
from ..connections.pool import Deadline
from ..connections.service import Connector
from ..dispatch import Dispatch
from ..running.call import with_inputs
from ..running.run import WorkflowsToAdvance
from .demand import Demand

logger = get_logger(__name__)

#: Seconds for which a job goes back whose text did not come, and up to twice as many. It may be why the time or the memory did not
#: suffice, or why the connection broke, and at once it would hold up the others again.
_LATER = 15.0


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Hands jobs to `dispatch`, with the time of their claim; and those that will not be run, with their outcomes.

    `deadline`: of the round in which this happens; each fetch has one of its own. `most`: bytes of text that are fetched of a job's
    arguments, and of its meta. `demand` counts the jobs that were handed over; once it has stopped, nothing is fetched.
    """

    connector: Connector
    deadline: Deadline
    dispatch: Dispatch
    demand: Demand
    touched: WorkflowsToAdvance
    most: int

    def hand_over(self, connection: sa.Connection, jobs: list[ClaimedJob], *, claimed_at: float) -> None:
        """Hand claimed jobs over, first those that are whole.

        Leases are renewed only after that. So jobs that were not fetched within a third of a lease go back. One is always
        fetched: then there is progress however slow the network is.
        """
        jobs = self._free_keys(connection, jobs)
        whole = [job for job in jobs if job.args is not None and job.meta is not None]
        if whole:
            self._take_in(self._with_inputs(connection, whole), claimed_at)
        if len(whole) == len(jobs):
            return
        for number, job in enumerate(job for job in jobs if job.args is None or job.meta is None):
            if self.demand.stopped or (number and monotonic() >= claimed_at + self.connector.lease / 3):
                self.dispatch.set_aside(job, Released())
            else:
                self._fetch(connection, job, claimed_at)

    def _free_keys(self, connection: sa.Connection, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """Free the unique keys that are taken until the start, before a handler can begin.

        Not in the claim, which nearly always finds none. A job that is enqueued between the two, or after this has failed, is
        not lost: the trigger that takes keys lets it have the key of a job that runs.
        """
        if not (started := started_keys(jobs)):
            return jobs
        try:
            with self.connector.begin_one(connection):
                freed = self.connector.store.free_started_keys(connection, started)
        except DBAPIError as error:
            logger.warning("%d unique keys could not be freed at the start of their jobs: %s", len(started), error.orig)
            return jobs
        return [without_key(job) if job.id in freed else job for job in jobs]

    def _with_inputs(self, connection: sa.Connection, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """The jobs with what members of workflows take of others. Where it cannot be read now, each reads it as it runs."""
        few = {job.id: extra(job) for job in jobs if job.extra is not None}
        if not few:
            return jobs
        self.touched.any = self.touched.any or any("workflow" in one for one in few.values())
        ids = [job_id for job_id, one in few.items() if "inputs" in one]
        if not ids:
            return jobs
        try:
            with self.connector.begin_one(connection):
                found = self.connector.store.inputs_of(connection, ids)
        except DBAPIError as error:
            if fault_of(error) is Fault.AWAY:
                raise
            logger.warning("what %d jobs take of others could not be read at once: %s", len(ids), error.orig)
            found = dict.fromkeys(ids)
        return [with_inputs(job, found[job.id]) if job.id in found else job for job in jobs]

    def _fetch(self, connection: sa.Connection, job: ClaimedJob, claimed_at: float) -> None:
        try:
            with self.deadline.over(connection), self.connector.begin_one(connection):
                texts = self.connector.store.fetch_args(connection, job.id, most=self.most)
        except DBAPIError as error:
            if is_data_fault(error):
                said = f"its arguments or its meta cannot be turned into text, of which at most {self.most:,} bytes are read"
                self._refuse(job, f"{said}: {error.orig}")
                return
            self.dispatch.set_aside(job, Released(_LATER * random.uniform(1, 2)))
            if not is_too_much(error):
                raise
            logger.warning("job %d goes back: its arguments and meta did not come (%s)", job.id, error.orig)
            return
        if texts is None:  # deleted since its claim
            return
        if texts.args is None or texts.meta is None:
            sizes = f"its arguments have {texts.args_bytes:,} bytes as JSON text, and its meta {texts.meta_bytes:,}"
            self._refuse(job, f"{sizes}; at most {self.most:,} of each are read")
        else:
            whole = [job._replace(args=texts.args, meta=texts.meta)]
            self._take_in(self._with_inputs(connection, whole), claimed_at)

    def _take_in(self, jobs: list[ClaimedJob], claimed_at: float) -> None:
        self.dispatch.take_in(jobs, claimed_at)
        self.demand.claimed += len(jobs)  # afterwards: a thread that sees `max_jobs` reached may close the slots

    def _refuse(self, job: ClaimedJob, why: str) -> None:
        reason = replace(describe(PayloadError(why)), traceback="")
        logger.error("job %d: %s", job.id, reason.message, extra=job.fields)
        self.dispatch.set_aside(job, Undecodable(reason))
