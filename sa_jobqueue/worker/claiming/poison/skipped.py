"""Jobs that this worker's claims skip for now: jobs that cannot be claimed, and jobs that wait until another has ended.

Each is claimed again by itself, so that it fails no claim of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ....arguments.context import ClaimedJob
from ....rules.failures import clean
from ....rules.lifecycle import Rules, decide
from ....rules.outcomes import Released
from ....sql.apply import Answer
from ...connections.service import Connector
from ...running.gathering import DEATHS
from ...running.run import Runs
from ...running.writer import OutcomeWriter
from ..recovery import may_be_a_jobs

#: Jobs skipped at most, and less than twice as many where several queues need their shares. Each claim compares every row that it
#: reads with all of them: a claim that reads 1,000 takes 4 ms.
MOST = 1_000
#: Seconds until a job that could not be claimed is tried again: the first time, and at most. The wait doubles each time, so when
#: the cause has gone (the tenant's other job has ended, a trigger is mended), the job waits at most once more as long as it has.
_FIRST, _LONGEST = 0.2, 30.0
#: Retries take at most a fifth of the time, and at most 100 a second fail: the server logs an error for each.
_SHARE, _EACH = 4, 0.01
#: Jobs tried in one transaction at most.
_AT_ONCE = 100
#: Jobs that operators see, and characters of the reason.
_TOLD, _LENGTH = 100, 300


@dataclass(slots=True)
class _Unclaimable:
    queue: str
    wait: float
    at: float
    """When it is tried again, by `monotonic()`."""
    why: str
    """The last error."""


class SkippedJobs:
    """The jobs, by id. Only the claimer's thread reads and writes them; any thread may call `told`.

    `queues`: the number of queues. Each has a share that the jobs of the others cannot use.
    """

    def __init__(self, queues: int = 1) -> None:
        self._queues = queues
        self._unclaimable: dict[int, _Unclaimable] = {}
        self._waiting: dict[int, str] = {}
        """Jobs that wait until another has ended, and their queues."""
        self._rests_until = 0.0
        """When the next retry may begin, by `monotonic()`."""
        self.changed: Callable[[], object] = lambda: None
        """Called when a job is added, and when jobs are no longer skipped. Set before the thread starts."""

    def __len__(self) -> int:
        return len(self._unclaimable) + len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether no more jobs can be skipped, except of queues that have not used up their share."""
        return len(self) >= MOST

    def has_room(self, queue: str) -> bool:
        """Whether another job of this queue can be skipped."""
        if not self.full:
            return True
        of_queue = sum(job.queue == queue for job in self._unclaimable.values())
        return of_queue + sum(name == queue for name in self._waiting.values()) < MOST // self._queues

    def ids(self) -> list[int]:
        """The jobs that no claim of several jobs may take."""
        return [*self._unclaimable, *self._waiting]

    def told(self) -> dict[str, str | None] | None:
        """Some of the jobs as text, and the error of each, or None if it waits for another; None: no job is skipped. For any thread."""
        # Each list is made in one step, so the claimer's thread cannot interfere.
        refused: list[tuple[int, str | None]] = [
            (number, job.why) for number, job in islice(list(self._unclaimable.items()), _TOLD)
        ]
        waiting = [(job, None) for job in islice(list(self._waiting), _TOLD)]
        return {str(job): why for job, why in [*refused, *waiting][:_TOLD]} or None

    def add_unclaimable(self, id: int, queue: str, *, why: str = "") -> bool:
        """Skip a job that cannot be claimed, and `why`. Returns whether that is new; it is not added when there is no room."""
        self._waiting.pop(id, None)
        job = self._unclaimable.get(id)
        new = job is None
        why = clean(why[:_LENGTH])
        if job is None:
            if not self.has_room(queue):
                return False
            job = self._unclaimable[id] = _Unclaimable(queue, _FIRST, 0.0, why)
            self.changed()
        else:
            job.wait, job.why = min(2 * job.wait, _LONGEST), why
        job.at = monotonic() + job.wait * random.uniform(0.8, 1.2)
        return new

    def add_waiting(self, id: int, queue: str) -> bool:
        """Let a job wait until `due` is called with `one_waiting`. False: there is no room."""
        if self.has_room(queue) and id not in self._waiting:
            self._waiting[id] = queue
            self.changed()
        return id in self._waiting

    def forget(self, ids: Iterable[int]) -> None:
        """Forget jobs that are not due any more: another worker has claimed or ended them."""
        before = len(self)
        for gone in ids:
            self._unclaimable.pop(gone, None)
            self._waiting.pop(gone, None)
        if len(self) < before:
            self.changed()

    def claimed(self, ids: Iterable[int]) -> None:
        """Note jobs that could be claimed. If a job had been unclaimable, its cause may be gone for others too: they are tried soon."""
        before = len(self._unclaimable)
        self.forget(ids)
        if len(self._unclaimable) == before:
            return
        soon = monotonic() + _FIRST
        for job in self._unclaimable.values():
            job.wait, job.at = _FIRST, min(job.at, soon)

    def rest(self, seconds: float, *, in_vain: int) -> None:
        """Pause in proportion to a retry that took `seconds`, and to the `in_vain` jobs that could again not be claimed."""
        self._rests_until = monotonic() + max(_SHARE * seconds, _EACH * in_vain)

    def due(self, free: Mapping[str, int], *, one_waiting: bool, at_once: bool = False) -> dict[int, str]:
        """The jobs to try now, and their queues: at most `free[queue]` of each queue.

        `one_waiting`: a waiting job may be among them. `at_once`: unclaimable jobs are, even before their time.
        """
        now, left = monotonic(), dict(free)
        found: dict[int, str] = {}
        unclaimable = self._unclaimable if at_once or now >= self._rests_until else {}
        for key, job in unclaimable.items():
            if (at_once or job.at <= now) and left.get(job.queue, 0) > 0 and len(found) < _AT_ONCE:
                left[job.queue] -= 1
                found[key] = job.queue
        for key, queue in self._waiting.items() if one_waiting else ():
            if left.get(queue, 0) > 0:
                found[key] = queue
                break
        return found

    def next_at(self, queues: Iterable[str], *, one_waiting: bool) -> float | None:
        """When `due` has a job of these queues, by `monotonic()`; None: it has none."""
        wanted = set(queues)
        if one_waiting and not wanted.isdisjoint(self._waiting.values()):
            return 0.0
        times = [job.at for job in self._unclaimable.values() if job.queue in wanted]
        return max(min(times), self._rests_until) if times else None


@dataclass(frozen=True, slots=True)
class Suspects:
    """Separates suspects, the jobs whose workers died twice: at most one suspect runs in this process at a time.

    A suspect may be the cause that kills workers. If they were rescued and claimed together, all would die with it each time, and all
    would end as failed. Suspects that must wait go back to the queue: another worker may claim them, and this worker skips them.
    """

    connector: Connector
    runs: Runs
    writer: OutcomeWriter
    skipped: SkippedJobs
    max_rescues: int

    @property
    def _often(self) -> int:
        return min(DEATHS, max(self.max_rescues - 1, 1))

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
