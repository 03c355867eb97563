"""Outcomes on their way to the database, kept until they are written, even while the database is away."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from time import monotonic
from typing import NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...rules.lifecycle import Change, JobStatus, unwritable
from ...sql.apply import Answer, kept_for_now
from ...sql.claims import Fault, fault_of
from ...sql.store import Store
from ...util.log import get_logger

logger = get_logger(__name__)

#: Seconds until a locked row is tried again: first soon, because another worker's claim holds most such rows for a moment only,
#: then more rarely, because an operator may hold one for long.
_LOCKED_FIRST, _LOCKED_LATER = 0.01, 0.2
#: Seconds until an outcome that the database refuses, perhaps not permanently, is tried again, alone.
_REFUSED_FIRST, _REFUSED_LATER = 1.0, 30.0
#: If more outcomes of a batch than this are refused, the rows are not to blame.
_MOST_REFUSED = 3


_WRITTEN = frozenset({Answer.APPLIED, Answer.CANCELLED})

_Begin: TypeAlias = Callable[[], AbstractContextManager[object]]


class _Later(NamedTuple):
    at: float
    change: Change


class OutcomeWriter:
    """Collects changes; the claimer's thread writes them in batches. `done` is called for changes that are written or lost.
    `was_ours` returns whether no other worker can have had the job of a change.

    Any thread may `add` and read the counts. The rest belongs to the claimer's thread.
    """

    def __init__(
        self,
        done: Callable[[list[Change], Answer], None],
        *,
        store: Store,
        was_ours: Callable[[Change], bool] = lambda _: True,
    ) -> None:
        self.pending: deque[Change] = deque()
        """Changes for the next batch. Any thread may read its length, which is quicker than the writer's own length."""
        self.add = self.pending.append
        """Takes a change to write."""
        self.asked: deque[Change] = deque()
        """Changes that a handler's commit, whose answer was lost, may have written; nothing else must be written for their jobs."""
        self.ask = self.asked.append
        """Takes a change for `asked`."""
        self._locked: list[_Later] = []
        self._waits: dict[int, float] = {}
        self._refused: list[_Later] = []
        self.in_doubt: dict[tuple[int, int | None], tuple[Change, ...]] = {}
        """By claim, what commits may have written whose answers were lost. Such outcomes are for `write_apart`."""
        self._longest = _REFUSED_LATER
        self._took_refused = False
        self._done, self._store, self._was_ours = done, store, was_ours

    def __len__(self) -> int:
        return len(self.pending) + len(self.asked) + len(self._locked) + len(self._refused)

    @property
    def refused(self) -> int:
        """Outcomes kept that the database has refused."""
        return len(self._refused)

    def take(self, most: int) -> list[Change]:
        """The next batch. It has at most one change for each job, because answers are by job id. A refused change comes alone."""
        if not len(self):
            return []
        now = monotonic()
        due = next((later for later in self._refused if later.at <= now), None)
        self._took_refused = due is not None and not (self._took_refused and self.pending)  # in turn with the others
        if due is not None and self._took_refused:
            self._refused.remove(due)
            return [due.change]
        if self._locked:
            self.pending.extend(later.change for later in self._locked if later.at <= now)
            self._locked = [later for later in self._locked if later.at > now]
        batch = [self.pending.popleft() for _ in range(min(len(self.pending), most))]
        if len({change.id for change in batch}) == len(batch):
            return batch
        first: dict[int, Change] = {}
        self.put_back([change for change in batch if first.setdefault(change.id, change) is not change])
        return list(first.values())

    def put_back(self, changes: list[Change]) -> None:
        """Put changes that were not written at the front of the next batch."""
        self.pending.extendleft(reversed(changes))

    def doubt(self, changes: list[Change]) -> None:
        """Note changes that may be written already, because the answer to a commit was lost. For any thread."""
        for change in changes:
            claim = change.id, change.claim_token
            # A handler's commit, and then the writer's: if the server stops, the answers to both may be lost.
            if change not in (before := self.in_doubt.get(claim, ())):
                self.in_doubt[claim] = *before, change

    def next_at(self) -> float | None:
        """When the next locked row or refused outcome is due, by the monotonic clock; None: there is none."""
        return min((later.at for later in (*self._locked, *self._refused)), default=None)

    def claims(self) -> list[tuple[int, int | None]]:
        """The claims, as (id, token), whose changes are still to be written."""
        changes = [*self.pending, *(later.change for later in (*self._locked, *self._refused))]
        return [(change.id, change.claim_token) for change in changes]

    def settle(self, changes: list[Change], answers: dict[int, Answer]) -> None:
        """Process the answers of the rows, after the commit."""
        if self.in_doubt:
            for change in changes:
                if answers.get(change.id) is not Answer.LOCKED:
                    self.in_doubt.pop((change.id, change.claim_token), None)
        if list(answers.values()).count(Answer.APPLIED) == len(changes):  # nearly always
            applied, left = changes, []
        else:
            applied = [change for change in changes if answers.get(change.id) is Answer.APPLIED]
            applied += [change.cancelled for change in changes if answers.get(change.id) is Answer.CANCELLED]
            left = [change for change in changes if answers.get(change.id) not in _WRITTEN]
        locked = [change for change in left if answers.get(change.id) is Answer.LOCKED]
        lost = [change for change in left if answers.get(change.id) is not Answer.LOCKED]
        if self._waits:
            again = {change.id for change in locked}
            self._waits = {job: wait for job, wait in self._waits.items() if job in again or job not in answers}
        for change in locked:
            wait = self._waits[change.id] = min(2 * self._waits.get(change.id, _LOCKED_FIRST / 2), _LOCKED_LATER)
            self._locked.append(_Later(monotonic() + wait, change))
        # `done` may log, and a log filter of the application may raise, so nothing comes after it.
        try:
            if applied:
                self._done(applied, Answer.APPLIED)
        finally:
            if lost:
                self._done(lost, Answer.LOST)

    def write_apart(self, begin: _Begin, connection: sa.Connection, changes: list[Change]) -> None:
        """Write a batch that failed as a whole: halve it until the bad row is alone, and end that job with the reason.

        Each part is a transaction of its own. Outcomes whose rows may not be to blame are kept and tried again later. Raises the
        error if the database is away or refuses more than three outcomes.
        """
        parts, refused = [changes], 0
        try:
            while parts:
                try:
                    with begin():
                        answers = self._store.apply(connection, parts[-1])
                        before = self._written_before(connection, parts[-1], answers) if self.in_doubt else []
                except DBAPIError as error:
                    fault = fault_of(error)
                    refused += fault is not Fault.ROW and len(parts[-1]) == 1
                    if fault is Fault.AWAY or refused > _MOST_REFUSED:
                        self.doubt(parts[-1])
                        raise
                    part = parts.pop()
                    if (instead := _instead(part, error, fault)) is not None:
                        parts += instead
                    elif fault is Fault.ROW:
                        logger.error("job %d: its outcome cannot be written: %s", part[0].id, error.orig)
                        self.in_doubt.pop((part[0].id, part[0].claim_token), None)
                        self._done(part, Answer.LOST)
                    else:
                        self._keep_refused(part[0], error)
                else:
                    part, ids = parts.pop(), {change.id for change in before}
                    try:
                        if before:
                            self._done(before, Answer.APPLIED)
                    finally:
                        self.settle([change for change in part if change.id not in ids], answers)
                        for change in before:
                            self.in_doubt.pop((change.id, change.claim_token), None)
        except BaseException:
            self.put_back([change for part in reversed(parts) for change in part])
            raise

    def _written_before(
        self, connection: sa.Connection, part: list[Change], answers: Mapping[int, Answer]
    ) -> list[Change]:
        """The changes, as an earlier commit in doubt has written them, of those jobs in `part` whose claims that commit has ended."""
        lost = [change for change in part if answers.get(change.id) is Answer.LOST]
        doubted = [before for change in lost for before in self.in_doubt.get((change.id, change.claim_token), ())]
        if not doubted:
            return []
        return [change for change in self._store.written_before(connection, doubted) if self._is_by_us(change)]

    def _is_by_us(self, change: Change) -> bool:
        """Whether our commit left the row as `change` makes it. A rescue, or the worker that has the job then, may do so, too."""
        return (change.status is JobStatus.COMPLETED and not change.deletes) or self._was_ours(change)

    def look_up(self, begin: _Begin, connection: sa.Connection) -> None:
        """Find out which of the changes in `asked` are written."""
        asked = list(self.asked)
        with begin():
            before = {change.id: change for change in self._store.written_before(connection, asked)}
        for _ in asked:
            self.asked.popleft()
        for change in asked:
            written = before.get(change.id)
            if written is not None and self._is_by_us(written):
                self._done([written], Answer.APPLIED)
            else:
                self._done([change], Answer.LOST)

    def hurry(self) -> None:
        """Try refused outcomes now, and again soon, because the worker leaves."""
        self._longest = _REFUSED_FIRST
        self._refused = [_Later(0.0, later.change) for later in self._refused]

    def _keep_refused(self, change: Change, error: DBAPIError) -> None:
        """Try a refused outcome again later, and alone, so that no others fail because of it."""
        before = self._waits.get(change.id, 0.0)
        wait = self._waits[change.id] = min(max(2 * before, _REFUSED_FIRST), self._longest)
        self._refused.append(_Later(monotonic() + wait, change))
        logger.log(
            logging.DEBUG if before >= _REFUSED_FIRST else logging.ERROR,
            "job %d: its outcome is refused, and tried again later: %s", change.id, error.orig,
        )  # fmt: skip


def _instead(part: list[Change], error: DBAPIError, fault: Fault) -> list[list[Change]] | None:
    """The parts to write in place of a part that failed; None if there is nothing to write instead."""
    if fault is Fault.LATE and (leaving := sum(change.deletes for change in part)):
        # Deleting them touches rows of the application that reference them. Pruning has more time for that.
        logger.warning("%d jobs with retain=0 could not be deleted in time; pruning will: %s", leaving, error.orig)
        return [[kept_for_now(change, fault) if change.deletes else change for change in part]]
    if len(part) > 1:
        half = len(part) // 2
        return [part[half:], part[:half]]
    if part[0].deletes:  # what cannot be deleted can perhaps be kept
        return [[kept_for_now(part[0], fault)]]
    noted = part[0].error
    if fault is Fault.ROW and noted is not None and noted != (plain := noted.in_ascii()):
        return [[part[0]._replace(error=plain)]]  # so that a text alone costs no attempts
    failure = unwritable(part[0], f"its outcome could not be written: {error.orig}") if fault is Fault.ROW else None
    if failure is None:  # it may be written later, or is a failure already
        return None
    logger.error("job %d: its outcome could not be written: %s", failure.id, error.orig)
    return [[failure]]
