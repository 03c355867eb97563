"""The maintenance thread: it does a worker's chores on a connection of its own. Chores renew leases, hear of cancels, end late jobs,
rescue jobs of dead workers, enqueue the jobs of schedules, write progress, log lines and counts, delete old rows and send heartbeats.

There is no leader: every worker does them, and skips rows that another worker has locked.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...rules.retry import backoff
from ...sql.claims import Fault, fault_of
from ...util.log import get_logger
from ..connections.pool import Deadline, give_up, hang_up
from ..connections.service import Connector
from ..process.inside import AutoResetEvent, ServiceThread
from .chore import Chore, Turn
from .notes import WriteNotes, WriteStats
from .presence import Presence
from .renew import Renewal
from .timeouts import Timeouts

logger = get_logger(__name__)

#: Seconds between two checks of timeouts, while a handler has one.
_TICK = 0.25
#: Seconds that a chore may take, however short the lease is: a host may be busy.
_SHORTEST_LIMIT = 2.0
#: Seconds that may be spent on the last jobs' progress and log lines when the worker ends.
_LAST_NOTES = 1.0
#: Seconds that may be spent on the last jobs' statistics where others have locked the rows.
_LAST_STATS = 1.0


class Maintenance:
    """Does the chores: `renewal`, `presence`, `notes` and `stats`, which it needs also by name, and the `others`."""

    def __init__(
        self,
        connector: Connector,
        *,
        timeouts: Timeouts,
        renewal: Renewal,
        presence: Presence,
        notes: WriteNotes,
        stats: WriteStats,
        others: Sequence[Chore],
    ) -> None:
        self._connector, self._timeouts = connector, timeouts
        self._renewal, self._presence, self._notes, self._stats = renewal, presence, notes, stats
        self.chores: list[Chore] = [renewal, notes, *others, presence, stats]
        """All chores, in the order in which they are done."""
        self._connection: sa.Connection | None = None
        self._failures = 0
        self._turn = connector.lease / 12
        self._end = threading.Event()
        self._wake = AutoResetEvent()
        self.moves_at = monotonic()
        """When the next chore is due, at the latest; while a chore runs, when it began. Written by this thread, read by any."""
        self.thread = ServiceThread("maintenance", self._loop)
        # For any chore: a dead connection is found in time, so that a new connection renews the leases.
        self.deadline = Deadline(max(connector.lease / 4, _SHORTEST_LIMIT))

    @property
    def away(self) -> bool:
        """Whether the database did not answer the last time. For any thread."""
        return self._failures > 0

    def start(self) -> None:
        """Begin."""
        self.moves_at = monotonic()
        self.thread.start()

    def wake(self) -> None:
        """Check at once whether a chore is due. For any thread."""
        self._wake.set()

    def finish(self, timeout: float) -> None:
        """End; waits at most `timeout` seconds for the current chore."""
        self._end.set()
        self._wake.set()
        self.thread.join(timeout)

    def _loop(self) -> None:
        while not self._end.is_set():
            pause = self._pause()
            self.moves_at = monotonic() + pause
            if self._failures:  # waking earlier would not help
                self._end.wait(pause)
            else:
                self._wake.wait(pause)
            if self._end.is_set():
                break
            try:
                self._timeouts.end_late()
                self._timeouts.give_back_stale()
                self._do_chores()
                self._failures = 0
            except BaseException as error:
                with suppress(BaseException):  # a log filter's
                    self._broken(error)
        if self._connection is None and self._stats.is_behind:
            with suppress(Exception):  # perhaps the connection was just cut
                self._connection = self._connector.connect(self.deadline)
        if self._connection is not None:
            self._write_last_notes(self._connection)
            self._write_last_stats(self._connection)
            # Not on a connection from the pool: handlers that do not end may hold them all.
            self._presence.leave(self._connection)
            hang_up(self._connection)

    def _pause(self) -> float:
        if self._failures:
            # Other workers rescue jobs once the database has been back for a lease. This worker must be back before.
            return backoff(self._failures, first=0.1, most=min(2.0, self._connector.lease / 4))
        due = min(chore.due_at() for chore in self.chores) - monotonic()
        return max(min(due, _TICK if self._timeouts.are_awaited else due), 0.01)

    def _do_chores(self) -> None:
        if (connection := self._connection) is None:
            connection = self._connection = self._connector.connect(self.deadline)
            self._renewal.at = 0.0
        for chore in self.chores:
            if chore.due_at() <= monotonic() and not self._end.is_set():
                self._do(chore, connection)

    def _do(self, chore: Chore, connection: sa.Connection) -> None:
        # First of all: the other chores must not wait for a chore that fails each time.
        self.moves_at = monotonic()
        chore.at = self.moves_at + chore.every * random.uniform(0.9, 1.0)
        try:
            with self.deadline.over(connection):
                more = chore.do(connection, Turn(monotonic() + self._turn, self._end))
        except DBAPIError as error:
            if error.connection_invalidated and not self._failures:
                chore.at = 0.0  # the chore is not to blame: a connection may be cut at any time
            if fault_of(error) in {Fault.AWAY, Fault.LATE}:
                raise
            # One row must not keep the other chores from being done.
            logger.error("a chore of maintenance failed: %s", error.orig)
            return
        if more:
            chore.at = 0.0

    def _write_last_notes(self, connection: sa.Connection) -> None:
        until = monotonic() + _LAST_NOTES
        try:
            with self.deadline.over(connection):
                while self._notes.write(connection, all=True) and monotonic() < until:
                    pass
        except Exception as error:
            logger.warning("the last progress and log lines of jobs could not be written: %s", error)

    def _write_last_stats(self, connection: sa.Connection) -> None:
        until = monotonic() + _LAST_STATS
        while True:
            try:
                with self.deadline.over(connection):
                    if not self._stats.write_all(connection):  # the worker has no row: not yet, or it was deleted
                        self._presence.do(connection, Turn(monotonic(), self._end))
                        self._stats.write_all(connection)
                return
            except Exception as error:
                # Workers that leave together add to the same rows.
                locked = isinstance(error, DBAPIError) and fault_of(error) is Fault.LATE
                if not locked or monotonic() >= until:
                    reason = getattr(error, "orig", error)
                    logger.warning("how the last jobs ended could not be added to the table stat: %s", reason)
                    return

    def _broken(self, error: BaseException) -> None:
        self._failures += 1
        broken, self._connection = self._connection, None
        if give_up(broken, self._connector.engine, failures=self._failures):
            log: Any = logger.warning if isinstance(error, DBAPIError) else logger.exception
            log("maintenance waits for the database (%s)", getattr(error, "orig", None) or error)
