"""Adding what this worker has counted to the table `stat`, and keeping that table short."""

from __future__ import annotations

import random
import uuid
from datetime import timedelta
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ...log import get_logger
from ...store import Fault, fault_of
from ...tally import TaskTally
from ..connections.service import Connector
from ..tally import Tally
from .chore import Chore, Turn

__all__ = ["KeepStats", "WriteStats"]

logger = get_logger(__name__)

#: Seconds between two writes.
_EVERY = 10.0
#: Seconds until the next try where a row is locked just now, and between two lines of the log that say what is wrong.
_LOCKED, _SAID_EVERY = 1.0, 60.0
#: For how long minutes are kept, and hours; rows in one statement; seconds between two looks at what is too old.
_MINUTES, _HOURS, _PAGE, _LOOK_EVERY = timedelta(days=7), timedelta(days=90), 2_000, 600.0


class WriteStats(Chore):
    """Writes what was counted since the last time, if anything was.

    Each batch has a number, and stays as it is until the database has it. So nothing is added twice when the answer to a COMMIT is lost.
    """

    def __init__(self, connector: Connector, tally: Tally, worker: uuid.UUID) -> None:
        super().__init__(_EVERY, at=monotonic() + _EVERY * random.uniform(0.5, 1.0))
        self._connector, self._tally, self._worker = connector, tally, worker
        self._total = 0
        """The tally's when the last batch was made."""
        self._batch: list[TaskTally] = []
        self._counted: list[TaskTally] = []
        """What the tally said when the batch was made."""
        self._number = 1
        self._said = 0.0

    def do(self, connection: Connection, turn: Turn) -> bool:
        """Write a batch."""
        try:
            self.write(connection)
        except DBAPIError as error:
            fault = fault_of(error)
            if fault is Fault.AWAY:
                raise
            if fault is Fault.LATE:
                self.at = monotonic() + _LOCKED
            self._say(error)
        return False

    def write(self, connection: Connection) -> bool:
        """Write what was counted, and was not written yet. False: this worker has no row now, so it has to enrol first."""
        if not self._batch and not self._take():
            return True
        with self._connector.begin_one(connection):
            added = self._connector.store.add_stats(connection, self._batch, worker=self._worker, number=self._number)
        if added:
            self._tally.written.update((one.key, one) for one in self._counted)
            self._batch, self._number = [], self._number + 1
        return added

    def _take(self) -> bool:
        """Make the next batch; whether there is one."""
        if self._tally.total == self._total:
            return False
        self._total = self._tally.total
        self._counted = self._tally.snapshot()
        written = self._tally.written
        pairs = [(one, written.get(one.key)) for one in self._counted]
        self._batch = [one if before is None else one.minus(before) for one, before in pairs if one != before]
        return bool(self._batch)

    def _say(self, error: DBAPIError) -> None:
        if monotonic() >= self._said + _SAID_EVERY or not self._said:
            self._said = monotonic()
            logger.error(
                "what jobs came to cannot be added to the table stat, and is kept: %s%s", error.orig, _mend(error)
            )


class KeepStats(Chore):
    """Moves minutes that are some days old into their hours, and deletes hours that are too old."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(_LOOK_EVERY, at=monotonic() + random.uniform(0, _LOOK_EVERY))
        self._connector = connector

    def do(self, connection: Connection, turn: Turn) -> bool:
        """Move and delete some pages."""
        while True:
            try:
                with self._connector.begin(connection):
                    moved = self._connector.store.roll_up_stats(connection, keep=_MINUTES, limit=_PAGE)
                    deleted = self._connector.store.drop_old_stats(connection, keep=_HOURS, limit=_PAGE)
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
