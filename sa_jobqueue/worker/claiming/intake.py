"""The way of claimed jobs to their slots, or back to the queue.

Each job goes as soon as it is complete: long arguments and meta do not come with the claim, and are fetched job by job. A job that
cannot be read delays no other: it gets an outcome without being run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...arguments.context import ClaimedJob
from ...errors import PayloadError
from ...rules.failures import describe
from ...rules.lifecycle import Rules, decide, extra
from ...rules.outcomes import Outcome, Released, Undecodable
from ...sql.claims import Fault, fault_of, is_data_fault, is_too_much
from ...sql.unique import started_keys, without_key
from ...sql.workers import EVERY_QUEUE
from ...tasks.registry import Registry
from ...tasks.upcasts import is_newer, version_of
from ...util.log import get_logger
from ..connections.pool import Deadline
from ..connections.service import Connector
from ..running.call import with_inputs
from ..running.executor import Executor
from ..running.gathering import Member
from ..running.run import Run, Runs, Stop
from ..running.slots import Slots
from ..running.writer import OutcomeWriter
from ..tally import Observer
from .demand import Demand
from .limited import LimitedQueues
from .poison.skipped import Suspects

logger = get_logger(__name__)

#: Seconds for which a job of an unknown task goes back at most. 100,000 such jobs are then claimed 333 times a second.
_LONGEST = 300.0
#: Unknown tasks that are distinguished at most. Names come out of rows, and each is kept and logged.
_MOST = 1_000
_REST = "\0"  # in no row: PostgreSQL has no such text
#: Seconds for which a job goes back whose text did not come, and up to twice as many. It may be why the time or the memory did not
#: suffice, or why the connection broke, and at once it would hold up the others again.
_LATER = 15.0


class UnknownTasks:
    """Decides how long jobs of tasks that are not registered here go back: `first` seconds, and longer while they keep coming.

    A job goes back for as long as its task has been unknown here. So a job of a task that comes with the release being
    deployed waits no longer than the deployment has taken so far. The service thread alone uses it, except `names`.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._longest = max(first, _LONGEST)
        self._seen: dict[tuple[str, int | None], tuple[float, float]] = {}
        """By task, and by version if only the version is unknown: the times of the first job, and of the end of the entry if no more jobs come."""

    def names(self) -> list[str]:
        """The tasks whose jobs came lately. For any thread: under limits they are not claimed meanwhile, so that they consume no rate."""
        now = monotonic()
        seen = list(self._seen.items())
        return [task for (task, version), (_, end) in seen if version is None and now < end and task != _REST]

    def seconds(self, job: ClaimedJob, version: int | None = None) -> float:
        """Seconds for which this job goes back. `version`: the version of its arguments, if only the version is unknown here."""
        now = monotonic()
        task = job.task, version
        if task not in self._seen and len(self._seen) >= _MOST:
            task = _REST, None
        since, forgotten = self._seen.get(task, (now, now))
        if now >= forgotten:
            since = now
            self._warn(job, version, last=task[0] == _REST)
        delay = min(max(now - since, self._first), self._longest)
        self._seen[task] = since, now + 2 * delay + 60.0
        return delay

    def _warn(self, job: ClaimedJob, version: int | None, *, last: bool) -> None:
        known = (
            f"no task named {job.task!r} is" if version is None else f"no version {version} of the task {job.task!r} is"
        )
        mend = (
            "Is its module imported (--app), or was it renamed without an alias?"
            if version is None
            else "Was this worker's release rolled back, or is it not deployed yet?"
        )
        logger.warning(
            "job %d: %s registered here; its jobs go back for %g s, and for up to %g s if they keep coming. %s%s",
            job.id, known, self._first, self._longest, mend,
            " (Many tasks are unknown; no more are named.)" if last else "",
            extra=job.fields,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Intake:
    """Gives claimed jobs to their slots. Only for the claimer's thread.

    `deadline`: of the round in which this happens; each fetch has its own. `most`: bytes of text that are fetched of a job's
    arguments, and of its meta. `demand` counts the jobs that were handed over; once it has stopped, nothing is fetched.
    """

    connector: Connector
    deadline: Deadline
    registry: Registry
    all_slots: Mapping[str, Slots]
    runs: Runs
    executor: Executor
    writer: OutcomeWriter
    observer: Observer
    unknown: UnknownTasks
    demand: Demand
    limited: LimitedQueues
    suspects: Suspects
    most: int

    def take(self, connection: sa.Connection, jobs: list[ClaimedJob], *, claimed_at: float) -> list[ClaimedJob]:
        """Give the jobs to their slots, except suspects that must wait. Returns the jobs without those suspects."""
        kept = self.suspects.part(connection, jobs)
        if len(kept) < len(jobs):
            self.limited.freed = True
        if broken := self.limited.broken:
            kept = [probing(job) if job.task in broken else job for job in kept]
        if kept:
            self._give(connection, self._free_keys(connection, kept), claimed_at)
        return kept

    def _give(self, connection: sa.Connection, jobs: list[ClaimedJob], claimed_at: float) -> None:
        """Give the jobs to their slots, complete jobs first.

        Leases are renewed only after that. So jobs that were not fetched within a third of a lease go back. At least one job is
        fetched, so that there is progress on the slowest network.
        """
        whole = [job for job in jobs if job.args is not None and job.meta is not None]
        if whole:
            self._start(self._with_inputs(connection, whole), claimed_at)
        if len(whole) == len(jobs):
            return
        for number, job in enumerate(job for job in jobs if job.args is None or job.meta is None):
            if self.demand.stopped or (number and monotonic() >= claimed_at + self.connector.lease / 3):
                self._set_aside(job, Released())
            else:
                self._fetch(connection, job, claimed_at)

    # ---- what a job needs before it starts

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
        """The jobs with the results that members of workflows take. If these cannot be read now, each job reads them as it runs."""
        rare = {job.id: extra(job) for job in jobs if job.extra is not None}
        if not rare:
            return jobs
        touched = self.runs.touched
        touched.any = touched.any or any("workflow" in attributes for attributes in rare.values())
        ids = [job_id for job_id, attributes in rare.items() if "inputs" in attributes]
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
        """Fetch the arguments and the meta of a job, and start it."""
        try:
            with self.deadline.over(connection), self.connector.begin_one(connection):
                texts = self.connector.store.fetch_args(connection, job.id, most=self.most)
        except DBAPIError as error:
            if is_data_fault(error):
                what = f"its arguments or its meta cannot be turned into text, of which at most {self.most:,} bytes are read"
                self._refuse(job, f"{what}: {error.orig}")
                return
            self._set_aside(job, Released(_LATER * random.uniform(1, 2)))
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
            self._start(self._with_inputs(connection, whole), claimed_at)

    def _refuse(self, job: ClaimedJob, why: str) -> None:
        reason = replace(describe(PayloadError(why)), traceback="")
        logger.error("job %d: %s", job.id, reason.message, extra=job.fields)
        self._set_aside(job, Undecodable(reason))

    # ---- to the slots, or back

    def _start(self, jobs: list[ClaimedJob], claimed_at: float) -> None:
        """Give complete jobs to their slots. Jobs of unknown tasks, and of newer versions of their tasks, go back."""
        known, now = self.registry.get, monotonic()
        by_queue: dict[str, list[Run]] = {name: [] for name in self.all_slots}
        others = by_queue.get(EVERY_QUEUE)
        unsettled = self.runs.unsettled
        runs: list[Run] = []
        gathered: set[str] = set()
        for job in jobs:
            task = known(job.task)
            if task is not None and job.extra is not None and is_newer(job, task.version):
                task = None
            # No slots: a trigger of the application's has moved the job, just as it was claimed.
            batch = by_queue.get(job.queue, others)
            if task is None or batch is None:
                self._end(job, Released())
                continue
            if task.batch is None:
                run = Run(job, task, now, claimed_at, unsettled)
            else:
                run = Member(job, task, now, claimed_at, unsettled)
                gathered.add(job.queue if job.queue in by_queue else EVERY_QUEUE)
            runs.append(run)
            batch.append(run)
        for lost in self.runs.add(runs):
            self._lose(lost)
        for name, batch in by_queue.items():
            if batch:
                slots = self.all_slots[name]
                for run in slots.gather(batch) if name in gathered else slots.feed(batch):  # the worker leaves
                    self.executor.give_up(run, Released())
        self.observer.claim(len(jobs))
        self.demand.claimed += len(jobs)  # afterwards: a thread that sees `max_jobs` reached may close the slots

    def _lose(self, run: Run) -> None:
        """Stop a run whose job was taken away, and claimed here again: no renewal will find that this run's claim is over."""
        if not run.settled:
            logger.warning(
                "job %d: its claim was taken away, and it is claimed here again; the earlier run is stopped, and nothing it "
                "writes is kept",
                run.job.id,
            )
            self.runs.stop(run, Stop.LOST)

    def _set_aside(self, job: ClaimedJob, outcome: Outcome) -> None:
        """End an incomplete job with this outcome, without a run."""
        self._end(job, outcome)
        self.observer.claim(1)

    def _end(self, job: ClaimedJob, outcome: Outcome) -> None:
        """End a job without a run. If its task is unknown, or its version is newer, it goes back with a delay and spends no attempt, because
        another release may know it.
        """
        task, version = self.registry.get(job.task), None
        if task is not None and is_newer(job, task.version):
            task, version = None, version_of(extra(job))
        if task is None:
            outcome = Released(self.unknown.seconds(job, version))
        self.observer.set_aside(job, None if task is None else task.name)
        self.writer.add(decide(job, outcome, Rules() if task is None else task.rules, random=0.5))


def probing(job: ClaimedJob) -> ClaimedJob:
    """The job, marked so that its end is reported to the breaker of its task."""
    return job._replace(extra=json.dumps({**extra(job), "probes": True}))
