"""Outcomes on their way to the database: kept until they are written, whatever happens to it meanwhile."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ...lifecycle import Change, unwritable
from ...log import get_logger
from ...store import Answer, Fault, Store, default_store, fault_of, kept_for_now

__all__ = ["OutcomeWriter"]

logger = get_logger(__name__)

#: A row that is locked is tried again after so many seconds: soon, for most are held for a moment by another worker's
#: claim that came to see them too late, then more rarely, for an operator may hold it for long.
_LOCKED_FIRST, _LOCKED_LATER = 0.01, 0.2
#: An outcome that the database refuses, and perhaps not for good, is tried again after so many seconds, alone.
_REFUSED_FIRST, _REFUSED_LATER = 1.0, 30.0
#: So many of a batch; when more are refused, it is not for what is in the rows.
_MOST_REFUSED = 3


@dataclass(frozen=True, slots=True)
class _Later:
    at: float
    change: Change


class OutcomeWriter:
    """Collects changes from any thread; the service thread writes them in batches. `done` hears of those that ended."""

    def __init__(self, done: Callable[[list[Change], Answer], None], *, store: Store = default_store) -> None:
        self._pending: deque[Change] = deque()
        self._locked: list[_Later] = []
        self._waits: dict[int, float] = {}
        self._refused: list[_Later] = []
        self._longest = _REFUSED_LATER
        self._took_refused = False
        self._done, self._store = done, store

    def __len__(self) -> int:
        return len(self._pending) + len(self._locked) + len(self._refused)

    @property
    def refused(self) -> int:
        """How many are kept that the database has refused."""
        return len(self._refused)

    def add(self, change: Change) -> None:
        """A change to be written."""
        self._pending.append(change)

    def take(self, most: int) -> list[Change]:
        """The next batch; at most one change of each job, for the answers go by id. What was refused comes alone."""
        if not len(self):
            return []
        now = monotonic()
        due = next((later for later in self._refused if later.at <= now), None)
        self._took_refused = due is not None and not (self._took_refused and self._pending)  # in turn with the others
        if due is not None and self._took_refused:
            self._refused.remove(due)
            return [due.change]
        if self._locked:
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
        """When the next row that was locked, or refused, is due, by the monotonic clock."""
        return min((later.at for later in (*self._locked, *self._refused)), default=None)

    def claims(self) -> list[tuple[int, int | None]]:
        """The claims, as (id, token), whose changes are still to be written."""
        changes = [*self._pending, *(later.change for later in (*self._locked, *self._refused))]
        return [(change.id, change.claim_token) for change in changes]

    def settle(self, changes: list[Change], answers: dict[int, Answer]) -> None:
        """After the commit: what each row answered."""
        left = [change for change in changes if answers.get(change.id) is not Answer.APPLIED]
        if self._waits:
            locked = {change.id for change in left if answers.get(change.id) is Answer.LOCKED}
            self._waits = {one: wait for one, wait in self._waits.items() if one in locked or one not in answers}
        lost: list[Change] = []
        for change in left:
            if answers.get(change.id) is Answer.LOCKED:
                wait = self._waits[change.id] = min(2 * self._waits.get(change.id, _LOCKED_FIRST / 2), _LOCKED_LATER)
                self._locked.append(_Later(monotonic() + wait, change))
            else:
                lost.append(change)
        # Who hears of it may log, and a filter of the application's raise: nothing is left to be done after the last.
        try:
            if len(left) < len(changes):
                applied = (
                    [change for change in changes if answers.get(change.id) is Answer.APPLIED] if left else changes
                )
                self._done(applied, Answer.APPLIED)
        finally:
            if lost:
                self._done(lost, Answer.LOST)

    def write_apart(self, begin: Callable[[], object], connection: Connection, changes: list[Change]) -> None:
        """Write a batch that failed as a whole: halve it until the bad row is alone, and end that one with the reason.

        Each part is a transaction of its own. What the rows may not be to blame for is kept and tried again later.
        Raises what says that the database is away, or that it refuses more than a few.
        """
        parts, refused = [changes], 0
        try:
            while parts:
                try:
                    with begin():  # type: ignore[attr-defined]
                        answers = self._store.apply(connection, parts[-1])
                except DBAPIError as error:
                    fault = fault_of(error)
                    refused += fault is not Fault.ROW and len(parts[-1]) == 1
                    if fault is Fault.AWAY or refused > _MOST_REFUSED:
                        raise
                    part = parts.pop()
                    if (instead := _instead(part, error, fault)) is not None:
                        parts += instead
                    elif fault is Fault.ROW:
                        logger.error("job %d: its outcome cannot be written: %s", part[0].id, error.orig)
                        self._done(part, Answer.LOST)
                    else:
                        self._keep_refused(part[0], error)
                else:
                    self.settle(parts.pop(), answers)
        except BaseException:
            self.put_back([change for part in reversed(parts) for change in part])
            raise

    def hurry(self) -> None:
        """The worker leaves: what was refused is due now, and soon again."""
        self._longest = _REFUSED_FIRST
        self._refused = [_Later(0.0, later.change) for later in self._refused]

    def _keep_refused(self, change: Change, error: DBAPIError) -> None:
        """It is tried again later, and alone, lest others fail by it."""
        before = self._waits.get(change.id, 0.0)
        wait = self._waits[change.id] = min(max(2 * before, _REFUSED_FIRST), self._longest)
        self._refused.append(_Later(monotonic() + wait, change))
        logger.log(
            logging.DEBUG if before >= _REFUSED_FIRST else logging.ERROR,
            "job %d: its outcome is refused, and tried again later: %s", change.id, error.orig,
        )  # fmt: skip


def _instead(part: list[Change], error: DBAPIError, fault: Fault) -> list[list[Change]] | None:
    """What to write in place of a part that failed; None: there is nothing."""
    if fault is Fault.LATE and (leaving := sum(change.deletes for change in part)):
        # To delete them touches rows of the application's that reference them: pruning has more time for that.
        logger.warning("%d jobs with retain=0 could not be deleted in time; pruning will: %s", leaving, error.orig)
        return [[kept_for_now(change, fault) if change.deletes else change for change in part]]
    if len(part) > 1:
        half = len(part) // 2
        return [part[half:], part[:half]]
    if part[0].deletes:  # what cannot be deleted can perhaps be kept
        return [[kept_for_now(part[0], fault)]]
    failure = _failure(part[0], error) if fault is Fault.ROW else None
    return None if failure is None else [[failure]]


def _failure(change: Change, error: DBAPIError) -> Change | None:
    """The failure to record instead; None if `change` already is one."""
    failure = unwritable(change, f"its outcome could not be written: {error.orig}")
    if failure is not None:
        logger.error("job %d: its outcome could not be written: %s", change.id, error.orig)
    return failure
