"""What it costs a worker to count what its jobs came to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from sa_jobqueue import TaskName
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.rules.lifecycle import Change, Event, JobStatus
from sa_jobqueue.worker.tally import Tally

from .report import Figure
from .schema import Bench

_BATCH = 1_000


@dataclass(slots=True)
class _Run:
    job: ClaimedJob
    task: TaskName
    started: float | None
    ended: float | None


def tally(bench: Bench) -> Iterator[Figure]:
    """A batch of completions as a worker has them: of one task, waiting alike; and the worst, each of another task and duration."""
    batches = 10 if bench.small else 1_000
    done = JobStatus.COMPLETED
    changes = [Change(id, id, Event.COMPLETE, done, done) for id in range(_BATCH)]
    for name, tasks, longest in (("of one task", 1, 1e-5), ("of 50 tasks in turn", 50, 20.0)):
        known = [TaskName(f"task {number}") for number in range(tasks)]
        runs: list[_Run | None] = []
        counted = Tally()
        for number in range(_BATCH):
            job = ClaimedJob(number, number, "default", "any", 4, counted.zero, 1, 10, 0, "{}", "{}", counted.zero)
            runs.append(_Run(job, known[number % tasks], 1.0, 1.0 + longest * (number % 7)))
        best = min(_seconds(counted, changes, runs) for _ in range(batches))
        yield Figure(f"tally, a job {name}", best / _BATCH * 1e6, "us", at_most=0.6 if tasks == 1 else None)


def _seconds(tally: Tally, changes: list[Change], runs: list[_Run | None]) -> float:
    begun = perf_counter()
    tally.add(changes, runs)
    return perf_counter() - begun
