"""Adding what this worker has counted to the table `stat`, and keeping that table short."""

from __future__ import annotations

import random
import uuid
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...log import get_logger
from ...statements.stats import HOURS_KEPT, MINUTES_KEPT
from ...store import Fault, fault_of
from ..connections.service import Connector
from ..tally import Tally
from .chore import Chore, Turn

__all__ = ["KeepStats", "WriteStats"]

logger = get_logger(__name__)

#: Seconds between two writes.
_EVERY = 10.0
#: Seconds until the next try where a row is locked just now; and between two lines of the log that say what is wrong, also before the
#: first one if it is a lock, because many workers add to the same rows.
_LOCKED, _SAID_EVERY = 1.0, 60.0
#: Queues with their tasks in one batch: it takes about 0.1 s (November 2026), and the chores that renew leases wait for it.
_MOST = 2_000
#: Rows in one statement; seconds between two looks at what is too old.
_PAGE, _LOOK_EVERY = 2_000, 600.0


class WriteStats(Chore):
    """Writes what was counted since the last time, if anything was.

    A batch is sent again with its number when the answer to its COMMIT was lost, so that nothing is added twice.
    """

    def __init__(self, connector: Connector, tally: Tally, worker: uuid.UUID) -> None:
        super().__init__(_EVERY, at=monotonic() + _EVERY * random.uniform(0.5, 1.0))
        self._connector, self._tally, self._worker = connector, tally, worker
        self._left = 0
        """Of how many queues and tasks this round has still to write what was counted. What is counted meanwhile is for the next one."""
        self._say_at: float | None = None
        """When the log may say what is wrong; None: nothing is."""

    @property
    def is_behind(self) -> bool:
        """Whether something was counted and is not written."""
        return bool(self._tally.written.batch) or self._tally.changed > 0

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Write some batches."""
        written = self._tally.written
        if self._left <= 0:
            self._left = len(written.batch) + self._tally.changed
        try:
            while self._left > 0 and self._fill():
                number = len(written.batch)
                if not self.write(connection):
                    return False
                self._left -= number
                if turn.is_over:
                    return self._left > 0
            self._left = 0
        except DBAPIError as error:
            fault = fault_of(error)
            if fault is Fault.AWAY:
                raise
            if fault is Fault.LATE:
                self.at = monotonic() + _LOCKED
            self._say(error, late=fault is Fault.LATE)
        return False

    def write(self, connection: sa.Connection) -> bool:
        """Write a batch, if there is one. False: this worker has no row now, so it has to enrol first."""
        if not self._fill():
            return True
        written = self._tally.written
        with self._connector.begin_one(connection):
            added = self._connector.store.add_stats(
                connection, written.batch, worker=self._worker, number=written.number
            )
        if added:
            written.counted.update((one.key, one) for one in written.made_of)
            written.batch, written.number = [], written.number + 1
            self._say_at = None
        return added

    def write_all(self, connection: sa.Connection) -> bool:
        """Write all there is. False as with `write`."""
        while self._fill():
            if not self.write(connection):
                return False
        return True

    def _fill(self) -> bool:
        """Make a batch if there is none; whether there is one then."""
        written = self._tally.written
        if not written.batch:
            written.made_of = self._tally.take_changed(_MOST)
            before = written.counted
            written.batch = [one.minus(before[one.key]) if one.key in before else one for one in written.made_of]
        return bool(written.batch)

    def _say(self, error: DBAPIError, *, late: bool) -> None:
        now = monotonic()
        if self._say_at is None:
            self._say_at = now + _SAID_EVERY if late else now
        if now >= self._say_at:
            self._say_at = now + _SAID_EVERY
            logger.error(
                "what jobs came to cannot be added to the table stat, and is kept: %s%s", error.orig, _mend(error)
            )


class KeepStats(Chore):
    """Moves minutes that are some days old into their hours, and deletes hours that are too old."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(_LOOK_EVERY, at=monotonic() + random.uniform(0, _LOOK_EVERY))
        self._connector = connector

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Move and delete some pages."""
        while True:
            try:
                with self._connector.begin(connection):
                    moved = self._connector.store.roll_up_stats(connection, keep=MINUTES_KEPT, limit=_PAGE)
                    deleted = self._connector.store.drop_old_stats(connection, keep=HOURS_KEPT, limit=_PAGE)
            except DBAPIError as error:
                if fault_of(error) is not Fault.LATE:
                    raise
                return False  # another worker is at the same hours: the rest can wait
            if max(moved, deleted) < _PAGE:
                return False
            if turn.is_over:
                return True


def _mend(error: DBAPIError) -> str:
    """What to do where the worker's role may not write it."""
    if getattr(error.orig, "sqlstate", None) != "42501":
        return ""
    return "; `sa-jobqueue grants --role ROLE --can work` prints the right that this worker's role lacks"
