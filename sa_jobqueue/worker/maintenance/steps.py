"""Put suspended jobs back into their queues when their waits are over."""

from __future__ import annotations

from threading import Lock
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of
from ...sql.steps import Resumed
from ...util.log import get_logger
from ..connections.service import Connector
from .chore import Chore, Turn

logger = get_logger(__name__)

#: Seconds between two searches without an announcement.
_EVERY = 5.0
_PAGE = 1_000
#: Seconds until the next try if a job was locked.
_BUSY = 0.02


class ResumeWaiting(Chore):
    """Puts suspended jobs back into their queues: when a signal is announced, when this worker suspends a job, and when a wait ends."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, _EVERY)
        self._next = float("inf")
        """When the next known wait ends, by `monotonic()`."""
        self._lock = Lock()

    def due_at(self) -> float:
        """The time of the next search, or of the end of the next wait if that is earlier."""
        return min(super().due_at(), self._next)

    def announce(self) -> None:
        """Note that a signal was sent or a job was suspended. For any thread; wake maintenance afterwards."""
        self.at = 0.0

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Put back a page of jobs."""
        self._next = float("inf")
        done = self._put_back(connection)
        if done.busy:
            self._next = monotonic() + _BUSY
        elif done.due_in is not None:
            self._next = monotonic() + max(done.due_in, 0.0)
        return False

    def put_back(self, connection: sa.Connection) -> None:
        """Put back the jobs that can go on, before a drain ends. For the claimer's thread: it waits for a turn of maintenance that puts back jobs.

        If the database refuses the statement, the drain ends without these jobs.
        """
        try:
            while self._put_back(connection).jobs:
                pass
        except DBAPIError as error:
            if fault_of(error) is Fault.AWAY:
                raise
            logger.info("suspended jobs cannot be put back: %s", error.orig)

    def _put_back(self, connection: sa.Connection) -> Resumed:
        with self._lock, self._connector.begin_one(connection):
            return self._store.resume_waiting(connection, most=_PAGE)
