"""Writing what running jobs say; and deleting what jobs that are gone have left behind."""

from __future__ import annotations

import random
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...log import get_logger
from ...store import FIRST_ID, Fault, fault_of
from ..connections.service import Connector
from ..running.notes import Batch, Notes
from .chore import Chore, Turn

__all__ = ["DropStrayNotes", "WriteNotes"]

logger = get_logger(__name__)

#: Seconds between two writes: a job's progress is not written more often.
_EVERY = 0.25
#: Seconds until the next try where the tables are locked, and between two lines of the log that say so.
_LOCKED, _SAID_EVERY = 5.0, 60.0
#: Rows that are looked at.
_PAGE = 1_000


class WriteNotes(Chore):
    """Writes what all jobs of this worker have said. It is due only when there is something to write."""

    def __init__(self, connector: Connector, notes: Notes) -> None:
        super().__init__(_EVERY)
        self._connector, self._notes = connector, notes
        self._said = 0.0
        """When it was last said that something could not be written."""

    def due_at(self) -> float:
        """When there is something to write, but `every` seconds after the last time at the earliest."""
        return max(self.at, self._notes.due_at())

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Write a batch."""
        return self.write(connection)

    def write(self, connection: sa.Connection, *, all: bool = False) -> bool:
        """Write a batch; `all`: also lines that could wait. Whether there is more.

        A text that the database cannot hold takes no other along: the batch is then halved until that text is alone.
        """
        batch = self._notes.take(all=all)
        if not batch.reports and not batch.logs:
            return False
        todo = [batch]
        while todo:
            part = todo.pop()
            try:
                self._write(connection, part)
            except DBAPIError as error:
                fault = fault_of(error)
                if fault in {Fault.AWAY, Fault.LATE}:
                    self._put_back([part, *todo])
                    if fault is Fault.AWAY:
                        raise
                    self.at = monotonic() + _LOCKED
                    self._say(error)
                    return False
                parts = part.parts() if fault is Fault.ROW else []
                if not parts:
                    self._put_back([part], drop=True)
                    self._say(error)
                todo += parts
            except BaseException:
                self._put_back([part, *todo], drop=True)
                raise
        return batch.more

    def _write(self, connection: sa.Connection, batch: Batch) -> None:
        reported = written = frozenset[tuple[int, int]]()
        with self._connector.begin(connection):
            if batch.reports:
                reported = self._connector.store.write_progress(connection, batch.reports)
            if batch.logs:
                written = self._connector.store.write_logs(connection, batch.logs)
        self._notes.settle(batch, reported, written)

    def _put_back(self, batches: list[Batch], *, drop: bool = False) -> None:
        for batch in batches:
            self._notes.put_back(batch, drop=drop)

    def _say(self, error: DBAPIError) -> None:
        if monotonic() >= self._said + _SAID_EVERY or not self._said:
            self._said = monotonic()
            logger.error("progress and log lines of jobs cannot be written: %s", error.orig)


class DropStrayNotes(Chore):
    """Looks at a page of each table, and at the next page the next time. If they are empty, that is two looks into an index.

    Pruning deletes them together with their jobs. What is left are those of jobs that were deleted otherwise: by hand, or at once
    (`retain=0`).
    """

    def __init__(self, connector: Connector, *, every: float) -> None:
        super().__init__(every, at=monotonic() + random.uniform(0, every))
        self._connector = connector
        self._after = (FIRST_ID, FIRST_ID)

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Delete what is found; go on soon where there was something."""
        with self._connector.begin(connection):
            self._after, deleted = self._connector.store.drop_stray_notes(connection, after=self._after, limit=_PAGE)
        return deleted > 0
