"""Writing the progress, log lines and statistics of jobs, and deleting those that are too old or whose jobs are gone."""

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
from ..running.notes import Batch, JobReports
from ..tally import Tally
from .chore import Chore, PagedChore, Turn, missing_right

logger = get_logger(__name__)

#: Seconds between two writes: a job's progress is not written more often.
_EVERY = 0.25
#: Seconds until the next try where the tables are locked, and between two log lines about that.
_LOCKED, _LOG_EVERY = 5.0, 60.0
#: Rows in a page.
_PAGE = 1_000


class WriteNotes(Chore):
    """Writes the progress and log lines of this worker's jobs. Due only when there is something to write."""

    def __init__(self, connector: Connector, notes: JobReports) -> None:
        super().__init__(connector, _EVERY, at=0.0)
        self._notes = notes
        self._logged_at = 0.0
        """When the last error was logged."""

    def due_at(self) -> float:
        """When there is something to write, but at the earliest `every` seconds after the last time."""
        return max(self.at, self._notes.due_at())

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Write a batch."""
        return self.write(connection)

    def write(self, connection: sa.Connection, *, all: bool = False) -> bool:
        """Write a batch; `all`: also lines that could wait. Returns whether there is more.

        A text that the database cannot hold does not harm others: the batch is halved until that text is alone.
        """
        while (use := self._notes.take_use()) is not None:
            try:
                with self._connector.begin_one(connection):
                    self._store.correct_units(connection, *use)
            except BaseException:
                self._notes.put_back_use(use)
                raise
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
                    self._log(error)
                    return False
                parts = part.parts() if fault is Fault.ROW else []
                if not parts:
                    self._put_back([part], drop=True)
                    self._log(error)
                todo += parts
            except BaseException:
                self._put_back([part, *todo], drop=True)
                raise
        return batch.more

    def _write(self, connection: sa.Connection, batch: Batch) -> None:
        reported = written = frozenset[tuple[int, int]]()
        with self._connector.begin(connection):
            if batch.reports:
                reported = self._store.write_progress(connection, batch.reports)
            if batch.logs:
                written = self._store.write_logs(connection, batch.logs)
        self._notes.settle(batch, reported, written)

    def _put_back(self, batches: list[Batch], *, drop: bool = False) -> None:
        for batch in batches:
            self._notes.put_back(batch, drop=drop)

    def _log(self, error: DBAPIError) -> None:
        if monotonic() >= self._logged_at + _LOG_EVERY or not self._logged_at:
            self._logged_at = monotonic()
            logger.error("progress and log lines of jobs cannot be written: %s", error.orig)


class DropStrayNotes(Chore):
    """Deletes progress, log lines, steps and waits whose jobs are gone, a page of each table at a time. It also deletes expired signals and old
    keys of `once`.

    Pruning deletes them together with their jobs. This is for jobs that were deleted otherwise: by hand, or at once (`retain=0`).
    """

    _after: tuple[int, ...] = (FIRST_ID,) * 4

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Check a page of each table; go on soon if rows were deleted."""
        with self._connector.begin(connection):
            self._after, deleted = self._store.drop_stray_notes(connection, after=self._after, limit=_PAGE)
        return deleted > 0


# ---- Adding this worker's counts to the table `stat`, and keeping that table short.

#: Seconds between two writes.
_STATS_EVERY = 10.0
#: Seconds until the next try where a row is locked just now; and between two log lines about an error, also before the first line if
#: it is a lock, because many workers add to the same rows.
_STATS_LOCKED, _STATS_LOG_EVERY = 1.0, 60.0
#: Queues with their tasks in one batch: it takes about 0.1 s (November 2026), and the chores that renew leases wait for it.
_MOST = 2_000
#: Rows in one statement; seconds between two searches for rows that are too old.
_STATS_PAGE, _KEEP_EVERY = 2_000, 600.0


class WriteStats(Chore):
    """Writes the counts that have changed since the last time.

    If the answer to a COMMIT was lost, the batch is sent again with the same number, so that nothing is added twice.
    """

    def __init__(self, connector: Connector, tally: Tally, worker: uuid.UUID) -> None:
        super().__init__(connector, _STATS_EVERY, at=monotonic() + _STATS_EVERY * random.uniform(0.5, 1.0))
        self._tally, self._worker = tally, worker
        self._left = 0
        """For how many queues with their tasks this round must still write the counts. Later counts are for the next round."""
        self._log_at: float | None = None
        """When an error may be logged next; None: there is no error."""

    @property
    def is_behind(self) -> bool:
        """Whether there are counts that are not written."""
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
            self._log(error, late=fault is Fault.LATE)
        return False

    def write(self, connection: sa.Connection) -> bool:
        """Write a batch, if there is one. False: this worker has no row now, so it must enrol first."""
        if not self._fill():
            return True
        written = self._tally.written
        with self._connector.begin_one(connection):
            added = self._store.add_stats(connection, written.batch, worker=self._worker, number=written.number)
        if added:
            written.counted.update((tally.key, tally) for tally in written.made_of)
            written.batch, written.number = [], written.number + 1
            self._log_at = None
        return added

    def write_all(self, connection: sa.Connection) -> bool:
        """Write all batches. False as with `write`."""
        while self._fill():
            if not self.write(connection):
                return False
        return True

    def _fill(self) -> bool:
        """Make a batch if there is none. Returns whether there is one now."""
        written = self._tally.written
        if not written.batch:
            written.made_of, before = self._tally.take_changed(_MOST), written.counted
            written.batch = [now.minus(before[now.key]) if now.key in before else now for now in written.made_of]
        return bool(written.batch)

    def _log(self, error: DBAPIError, *, late: bool) -> None:
        now = monotonic()
        if self._log_at is None:
            self._log_at = now + _STATS_LOG_EVERY if late else now
        if now >= self._log_at:
            self._log_at = now + _STATS_LOG_EVERY
            logger.error(
                "how jobs ended cannot be added to the table stat, and is kept: %s%s", error.orig, missing_right(error)
            )


class KeepStats(PagedChore):
    """Moves minutes that are some days old into their hours, and deletes hours and counts of the backlog that are too old."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, _KEEP_EVERY)

    def do_page(self, connection: sa.Connection) -> bool:
        """Move and delete a page."""
        try:
            with self._connector.begin(connection):
                moved = self._store.roll_up_stats(connection, keep=MINUTES_KEPT, limit=_STATS_PAGE)
                deleted = self._store.drop_old_stats(connection, keep=HOURS_KEPT, limit=_STATS_PAGE)
                counts = self._store.drop_old_backlog(connection, keep=MINUTES_KEPT)
        except DBAPIError as error:
            if fault_of(error) is not Fault.LATE:
                raise
            return False  # another worker moves the same hours: the rest can wait
        return counts > 0 or max(moved, deleted) >= _STATS_PAGE


# ---- Counting the backlog of all queues.

#: The second of the database's minute at which the queues are counted, so that this fits the minutes of the table `stat`, to which each
#: worker adds up to 10 s late; and the seconds over which the workers spread, because one of them counts for all.
_COUNT_AT, _COUNT_SPREAD = 50.0, 5.0


class CountBacklog(Chore):
    """Writes how deep each queue is at the end of each minute, unless another worker has done it."""

    def __init__(self, connector: Connector, tally: Tally) -> None:
        super().__init__(connector, 60.0)
        self._tally = tally

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Count if the minute ends, and come again at the end of the next."""
        second = (monotonic() + self._tally.zero) % 60
        self.at = monotonic() + (_COUNT_AT - second) % 60 + random.uniform(0, _COUNT_SPREAD)
        if second >= _COUNT_AT or second < _COUNT_SPREAD:
            try:
                with self._connector.begin(connection):
                    self._store.count_backlog(connection)
            except DBAPIError as error:
                if fault_of(error) is not Fault.LATE:
                    raise
        return False
