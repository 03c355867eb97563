"""Outcomes on their way to the database: kept until they are written, whatever happens to it meanwhile."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from .. import operations
from ..lifecycle import Change, Event, JobStatus
from ..models import Job
from ..operations import Answer, is_data_fault
from ..outcomes import ErrorEntry
from ..retry import MAX_MESSAGE, clean

__all__ = ["OutcomeWriter"]

logger = logging.getLogger(__name__)

#: A row that is locked is tried again after so many seconds: soon, for most are held for a moment by another worker's
#: claim that came to see them too late, then more rarely, for an operator may hold it for long.
_LOCKED_FIRST, _LOCKED_LATER = 0.01, 0.2
#: A completed job that a foreign key keeps from being deleted at once stays this long before pruning tries.
_UNDELETABLE_RETAIN = 86_400.0


@dataclass(frozen=True, slots=True)
class _Later:
    at: float
    change: Change


class OutcomeWriter:
    """Collects changes from any thread; the service thread writes them in batches. `done` hears of those that ended."""

    def __init__(
        self, done: Callable[[list[Change], Answer], None], *, worker: str | None = None, job: type[Job] = Job
    ) -> None:
        self._pending: deque[Change] = deque()
        self._locked: list[_Later] = []
        self._waits: dict[int, float] = {}
        self._done = done
        self._worker, self._job = worker, job

    def __len__(self) -> int:
        return len(self._pending) + len(self._locked)

    def add(self, change: Change) -> None:
        """A change to be written."""
        self._pending.append(change)

    def take(self, most: int) -> list[Change]:
        """The next batch; at most one change of each job, for the answers go by id."""
        if self._locked:
            now = monotonic()
            self._pending.extend(later.change for later in self._locked if later.at <= now)
            self._locked = [later for later in self._locked if later.at > now]
        pending = self._pending
        batch = [pending.popleft() for _ in range(min(len(pending), most))]
        if len({change.id for change in batch}) == len(batch):
            return batch
        first: dict[int, Change] = {}
        again = [change for change in batch if first.setdefault(change.id, change) is not change]
        self.put_back(again)
        return list(first.values())

    def put_back(self, changes: list[Change]) -> None:
        """These were not written after all; they come first again."""
        self._pending.extendleft(reversed(changes))

    def next_at(self) -> float | None:
        """When the next row that was locked is due, by the monotonic clock."""
        return min((later.at for later in self._locked), default=None)

    def claims(self) -> list[tuple[int, int]]:
        """The claims, as (id, claims), whose changes are still to be written."""
        changes = [*self._pending, *(later.change for later in self._locked)]
        return [(change.id, change.claims) for change in changes]

    def settle(self, changes: list[Change], answers: dict[int, Answer]) -> None:
        """After the commit: what each row answered."""
        left = [change for change in changes if answers.get(change.id) is not Answer.APPLIED]
        if self._waits:
            locked = {change.id for change in left if answers.get(change.id) is Answer.LOCKED}
            self._waits = {one: wait for one, wait in self._waits.items() if one in locked or one not in answers}
        if len(left) < len(changes):
            applied = [change for change in changes if answers.get(change.id) is Answer.APPLIED] if left else changes
            self._done(applied, Answer.APPLIED)
        for change in left:
            if answers.get(change.id) is Answer.LOCKED:
                wait = self._waits[change.id] = min(2 * self._waits.get(change.id, _LOCKED_FIRST / 2), _LOCKED_LATER)
                self._locked.append(_Later(monotonic() + wait, change))
            else:
                self._done([change], Answer.LOST)

    def write_apart(self, begin: Callable[[], object], connection: Connection, changes: list[Change]) -> None:
        """Write a batch that failed as a whole: halve it until the bad row is alone, and end that one with the reason.

        Each part is a transaction of its own. Raises only what says that the database is away.
        """
        while changes:
            try:
                with begin():  # type: ignore[attr-defined]
                    answers = operations.apply(connection, changes, worker=self._worker, job=self._job)
            except DBAPIError as error:
                if not is_data_fault(error):
                    self.put_back(changes)
                    raise
                if len(changes) > 1:
                    half = len(changes) // 2
                    self.put_back(changes[half:])
                    self.write_apart(begin, connection, changes[:half])
                    changes = self.take(len(changes) - half)
                    continue
                if (mended := _mend(changes[0], error)) is None:
                    logger.error("job %d: its outcome cannot be written: %s", changes[0].id, error.orig)
                    self._done(changes, Answer.LOST)
                    return
                changes = [mended]
            else:
                self.settle(changes, answers)
                return


def _mend(change: Change, error: DBAPIError) -> Change | None:
    """A change that can be written in place of one that cannot; None when that was it already."""
    if change.event is Event.COMPLETE and change.retain == 0:  # what cannot be deleted can perhaps be kept
        return change._replace(retain=_UNDELETABLE_RETAIN)
    reason = ErrorEntry("OutcomeNotWritten", clean(f"its outcome could not be written: {error.orig}")[:MAX_MESSAGE])
    if change.error == reason:
        return None
    if change.error is not None and change.error.type == reason.type:
        return None
    logger.error("job %d: its outcome could not be written: %s", change.id, error.orig)
    return change._replace(
        event=Event.FAIL, status=JobStatus.FAILED, if_cancelled=JobStatus.FAILED,
        error=reason, result=None, delay=0.0, retain=None,
    )  # fmt: skip
