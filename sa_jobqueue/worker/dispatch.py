"""What becomes of claimed jobs: they go to their slots, or back to the queue."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from ..arguments.context import ClaimedJob
from ..rules.lifecycle import Rules, decide
from ..rules.outcomes import Outcome, Released
from ..sql.workers import EVERY_QUEUE
from ..tasks.registry import Registry
from ..tasks.tasks import AnyTask
from ..util.log import get_logger
from .running.executor import Executor
from .running.run import Run, Runs, Stop
from .running.slots import Slots
from .running.writer import OutcomeWriter
from .tally import Observer

logger = get_logger(__name__)

#: Seconds for which a job goes back at most. 100,000 such jobs are then claimed 333 times a second.
_LONGEST = 300.0
#: Tasks that are told apart at most. Names come out of rows, and each is kept and logged.
_MOST = 1_000
_REST = "\0"  # in no row: PostgreSQL has no such text


class UnknownTasks:
    """Decides how long such jobs go back: `first` seconds, and longer while they keep coming.

    A job goes back for as long as its task has been unknown here. So a job of a task that comes with the release being
    deployed waits no longer than the deployment has taken so far. The service thread alone uses it, except `names`.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._longest = max(first, _LONGEST)
        self._seen: dict[str, tuple[float, float]] = {}
        """By task: since when its jobs have come, and when the task is forgotten if no more come."""

    def names(self) -> list[str]:
        """The tasks whose jobs came lately. For any thread: under limits they are not claimed meanwhile, so that they use up no rate."""
        now = monotonic()
        return [task for task, (_, forgotten) in list(self._seen.items()) if now < forgotten and task != _REST]

    def seconds(self, job: ClaimedJob) -> float:
        """Seconds for which this job goes back."""
        now = monotonic()
        task = job.task if job.task in self._seen or len(self._seen) < _MOST else _REST
        since, forgotten = self._seen.get(task, (now, now))
        if now >= forgotten:
            since = now
            self._say(job, last=task == _REST)
        delay = min(max(now - since, self._first), self._longest)
        self._seen[task] = since, now + 2 * delay + 60.0
        return delay

    def _say(self, job: ClaimedJob, *, last: bool) -> None:
        logger.warning(
            "job %d: no task named %r is registered here; its jobs go back for %g s, and for up to %g s if they keep coming. "
            "Is its module imported (--app), or was it renamed without an alias?%s",
            job.id, job.task, self._first, self._longest,
            " (Many tasks are unknown; no more are named.)" if last else "",
            extra=job.fields,
        )  # fmt: skip


class Dispatch:
    """Hands claimed jobs on. The claimer's thread alone calls it."""

    def __init__(
        self,
        registry: Registry,
        all_slots: Mapping[str, Slots],
        *,
        runs: Runs,
        executor: Executor,
        writer: OutcomeWriter,
        observer: Observer,
        unknown: UnknownTasks,
    ) -> None:
        self._registry, self._all_slots, self._runs = registry, all_slots, runs
        self._executor, self._writer, self._observer, self.unknown = executor, writer, observer, unknown

    def take_in(self, jobs: list[ClaimedJob], claimed_at: float) -> None:
        """To the slots with jobs that were claimed just now. Jobs of unknown tasks go back."""
        known, now = self._registry.get, monotonic()
        by_queue: dict[str, list[Run]] = {name: [] for name in self._all_slots}
        others = by_queue.get(EVERY_QUEUE)
        unsettled = self._runs.unsettled
        runs: list[Run] = []
        for job in jobs:
            task = known(job.task)
            if task is None:
                self._return_unknown(job)
                continue
            batch = by_queue.get(job.queue, others)
            if batch is None:  # a trigger of the application's has moved it, just as it was claimed
                self._end(job, task, Released())
                continue
            run = Run(job, task, now, claimed_at, unsettled)
            runs.append(run)
            batch.append(run)
        for lost in self._runs.add(runs):
            self._lose(lost)
        for name, batch in by_queue.items():
            if batch:
                for run in self._all_slots[name].feed(batch):  # the worker leaves
                    self._executor.give_up(run, Released())
        self._observer.claim(len(jobs))

    def set_aside(self, job: ClaimedJob, outcome: Outcome) -> None:
        """End a claimed job with `outcome`, without a run; it goes back if its task is unknown."""
        task = self._registry.get(job.task)
        if task is None:
            self._return_unknown(job)
        else:
            self._end(job, task, outcome)
        self._observer.claim(1)

    def _lose(self, run: Run) -> None:
        """Its job was taken away, and claimed here again: no renewal will say that this run's claim is over."""
        if not run.settled:
            logger.warning(
                "job %d: its claim was taken away, and it is claimed here again; the earlier run is stopped, and nothing it "
                "writes is kept",
                run.job.id,
            )
            self._runs.stop(run, Stop.LOST)

    def _return_unknown(self, job: ClaimedJob) -> None:
        """Another release may know the task: back to the queue with a delay, and no attempt spent."""
        self._end(job, None, Released(self.unknown.seconds(job)))

    def _end(self, job: ClaimedJob, task: AnyTask | None, outcome: Outcome) -> None:
        """Without a run."""
        self._observer.set_aside(job, None if task is None else task.name)
        self._writer.add(decide(job, outcome, Rules() if task is None else task.rules, random=0.5))
