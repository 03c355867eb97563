"""How the jobs of a process ended, counted by queue and task. The table `stat` and the metrics are made of it.

>>> before = TaskTally("mail", "send", completed=3, run_seconds=0.5)
>>> TaskTally("mail", "send", completed=5, failed=1, run_seconds=0.75).minus(before).failed
1
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

#: The upper bounds of the buckets in seconds, each inclusive, as Prometheus has them. What is longer is in one more bucket.
BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0,
)  # fmt: skip
BUCKETS = len(BOUNDS) + 1
#: The bounds of each bucket: more than the first, and at most the second. What is over a billion seconds is no duration.
RANGES = tuple(zip((0.0, *BOUNDS), (*BOUNDS, 1e9), strict=True))


def bucket_of(seconds: float) -> int:
    """The number of the bucket for a duration, from 0 on."""
    return bisect_left(BOUNDS, seconds)


def quantile(counts: Sequence[int], q: float) -> float | None:
    """Seconds within which the share `q`, from 0 to 1, of the durations stayed; None if none was counted.

    Within a bucket the durations are taken to be spread evenly, as `histogram_quantile` of Prometheus does. In the last bucket
    it is the lower bound, because there is no upper bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below = q * total, 0
    for number, count in enumerate(counts):
        if count and below + count >= rank:
            if number == len(BOUNDS):
                break
            low = BOUNDS[number - 1] if number else 0.0
            return low + (BOUNDS[number] - low) * max(rank - below, 0.0) / count
        below += count
    return BOUNDS[-1]


#: What is counted for jobs whose tasks are not registered in this process: their names come out of rows, and have no bound.
UNKNOWN_TASK = "(unknown)"
#: What is counted for queues that this process does not serve, where there are thousands.
OTHER_QUEUES = "(other)"


@dataclass(frozen=True, slots=True)
class TaskTally:
    """How the jobs of a task in a queue have ended since the tally began.

    The numbers of outcomes: `released` were given back to the queue, `rescued` were taken from a worker that died, or their
    child process did; `lost` are outcomes that came after their claim was over. `runs` and `waits` are numbers of jobs by how long
    their handlers took, and by how long they had been due when they started, in the buckets of `histogram.BOUNDS`; `run_seconds`
    and `wait_seconds` are sums.
    """

    queue: str
    task: str
    completed: int = 0
    retried: int = 0
    failed: int = 0
    cancelled: int = 0
    snoozed: int = 0
    suspended: int = 0
    released: int = 0
    rescued: int = 0
    lost: int = 0
    run_seconds: float = 0.0
    wait_seconds: float = 0.0
    runs: tuple[int, ...] = (0,) * BUCKETS
    waits: tuple[int, ...] = (0,) * BUCKETS

    @property
    def key(self) -> tuple[str, str]:
        """The queue and the task."""
        return self.queue, self.task

    @property
    def jobs(self) -> int:
        """Jobs that this process ended, or gave back to the queue: all outcomes but `rescued` and `lost`."""
        return (
            self.completed + self.retried + self.failed + self.cancelled + self.snoozed + self.suspended + self.released
        )

    def plus(self, other: TaskTally) -> TaskTally:
        """Both together."""
        return self._with(other, 1)

    def minus(self, other: TaskTally) -> TaskTally:
        """What has come since `other`, an earlier state of the same tally."""
        return self._with(other, -1)

    def _with(self, other: TaskTally, sign: int) -> TaskTally:
        sums: dict[str, Any] = {name: getattr(self, name) + sign * getattr(other, name) for name in _NUMBERS}
        arrays: dict[str, Any] = {
            name: tuple(a + sign * b for a, b in zip(getattr(self, name), getattr(other, name), strict=True))
            for name in ("runs", "waits")
        }
        return TaskTally(self.queue, self.task, **sums, **arrays)


#: The outcomes, and the sums of seconds.
_NUMBERS = tuple(field.name for field in fields(TaskTally) if field.name not in {"queue", "task", "runs", "waits"})
