"""Jobs of tasks that this worker does not know: they go back to the queue, each time for longer.

During a rolling deploy another worker knows the task, and this one is soon gone. But if no worker knows it, 100,000 such jobs
would be claimed and given back without end, several thousand a second.
"""

from __future__ import annotations

from time import monotonic

from ..context import ClaimedJob
from ..log import get_logger

__all__ = ["UnknownTasks"]

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
