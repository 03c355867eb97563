"""Writing what running jobs say; and deleting what jobs that are gone have left behind."""

from __future__ import annotations

import random
import uuid
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of
from ...sql.parts import FIRST_ID
from ...sql.readings.stats import HOURS_KEPT, MINUTES_KEPT
from ...util.log import get_logger
from ..connections.service import Connector
from ..running.notes import Batch, Notes
from ..tally import Tally
from .chore import Chore, Turn

logger = get_logger(__name__)

#: Seconds between two writes: a job's progress is not written more often.
_EVERY = 0.25
#: Seconds until the next try where the tables are locked, and between two lines of the log that say so.
_LOCKED, _SAID_EVERY = 5.0, 60.0
#: Rows that are looked at.
_PAGE = 1_000


class WriteNotes(Chore):
    """Writes the progress and log lines of this worker's jobs. Due only when there is something to write."""

    def __init__(self, connector: Connector, notes: Notes) -> None:
        super().__init__(_EVERY)
        self._connector, self._notes = connector, notes
        self._said = 0.0
        """When the log last told that something could not be written."""

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


# ---- Adding what this worker has counted to the table `stat`, and keeping that table short.

#: Seconds between two writes.
_STATS_EVERY = 10.0
#: Seconds until the next try where a row is locked just now; and between two lines of the log that say what is wrong, also before the
#: first one if it is a lock, because many workers add to the same rows.
_STATS_LOCKED, _STATS_SAID_EVERY = 1.0, 60.0
#: Queues with their tasks in one batch: it takes about 0.1 s (November 2026), and the chores that renew leases wait for it.
_MOST = 2_000
#: Rows in one statement; seconds between two looks at what is too old.
_STATS_PAGE, _LOOK_EVERY = 2_000, 600.0


class WriteStats(Chore):
    """Writes what was counted since the last time, if anything was.

    A batch is sent again with its number when the answer to its COMMIT was lost, so that nothing is added twice.
    """

    def __init__(self, connector: Connector, tally: Tally, worker: uuid.UUID) -> None:
        super().__init__(_STATS_EVERY, at=monotonic() + _STATS_EVERY * random.uniform(0.5, 1.0))
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
                self.at = monotonic() + _STATS_LOCKED
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
            self._say_at = now + _STATS_SAID_EVERY if late else now
        if now >= self._say_at:
            self._say_at = now + _STATS_SAID_EVERY
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
                    moved = self._connector.store.roll_up_stats(connection, keep=MINUTES_KEPT, limit=_STATS_PAGE)
                    deleted = self._connector.store.drop_old_stats(connection, keep=HOURS_KEPT, limit=_STATS_PAGE)
            except DBAPIError as error:
                if fault_of(error) is not Fault.LATE:
                    raise
                return False  # another worker is at the same hours: the rest can wait
            if max(moved, deleted) < _STATS_PAGE:
                return False
            if turn.is_over:
                return True


def _mend(error: DBAPIError) -> str:
    """What to do where the worker's role may not write it."""
    if getattr(error.orig, "sqlstate", None) != "42501":
        return ""
    return "; `sa-jobqueue grants --role ROLE --can work` prints the right that this worker's role lacks"
