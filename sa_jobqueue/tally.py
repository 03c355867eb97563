"""What the jobs of one process came to, by queue and task, as a value. Workers count it; the table `stat` and metrics are made of it.

>>> before = TaskTally("mail", "send", completed=3, run_seconds=0.5)
>>> TaskTally("mail", "send", completed=5, failed=1, run_seconds=0.75).minus(before).failed
1
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from .histogram import BUCKETS

__all__ = ["OTHER_QUEUES", "UNKNOWN_TASK", "TaskTally"]

#: What is counted for jobs whose tasks are not registered in this process: their names come out of rows, and have no bound.
UNKNOWN_TASK = "(unknown)"
#: What is counted for queues that this process does not serve, where there are thousands.
OTHER_QUEUES = "(other)"


@dataclass(frozen=True, slots=True)
class TaskTally:
    """What the jobs of one task in one queue came to, since the tally began.

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
        return self.completed + self.retried + self.failed + self.cancelled + self.snoozed + self.released

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
_NUMBERS = tuple(one.name for one in fields(TaskTally) if one.name not in {"queue", "task", "runs", "waits"})
