"""Telling the database that this worker is alive, and that it leaves."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from time import monotonic
from typing import Any, TypedDict

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...migrations import CURRENT
from ...sql.claims import Fault, fault_of
from ...util.log import get_logger
from ...version import __version__
from ..connections.service import Connector
from ..tally import Tally
from .chore import Chore, Turn
from .declaring import GONE

logger = get_logger(__name__)

#: A worker that has not been seen for this long is struck off.
_FORGET = timedelta(days=1)


class Vitals(TypedDict):
    """What changes of a worker's row: see `WorkerRow`."""

    memory: int
    loop_lag: float
    pressure: str | None
    skipped: Mapping[str, str | None] | None


class Presence(Chore):
    """Keeps this worker's row in the table of workers.

    `tasks`: those it knows, as in `WorkerRow.tasks`. `vitals()`: what changes of the row. `tally`: is told the database's time.
    `next_look`: is told after how many seconds a schedule is due, or None. `undeclared`: is told whether there are limits that no
    code declares any more; `archived`: which tasks' jobs are archived. `drain` is called when an operator asks this worker to drain.
    """

    def __init__(
        self,
        connector: Connector,
        worker: uuid.UUID,
        queues: Mapping[str, int],
        *,
        tasks: Mapping[str, Any],
        vitals: Callable[[], Vitals],
        tally: Tally,
        next_look: Callable[[float | None], None],
        undeclared: Callable[[bool], None],
        archived: Callable[[Collection[str]], None],
        drain: Callable[[], None],
    ) -> None:
        super().__init__(max(min(connector.lease / 3, 20.0), 1.0))
        self._connector, self._worker, self._queues = connector, worker, queues
        self._tasks, self._vitals, self._tally = tasks, vitals, tally
        self._archived = archived
        self._written = 0.0
        """When the row was written last, by `monotonic()`."""
        self._next_look, self._undeclared, self._drain = next_look, undeclared, drain
        self._drains = False
        """Whether it has been told. Its thread alone uses it."""

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Say that we are alive, and strike off workers that were not seen for long."""
        self._written = monotonic()
        try:
            with self._connector.begin(connection):
                asked = monotonic()
                heard = self._connector.store.enrol(
                    connection,
                    self._worker,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    queues=list(self._queues),
                    concurrency=sum(self._queues.values()),
                    slots=self._queues,
                    version=__version__,
                    lease=self._connector.lease,
                    schema_version=CURRENT,
                    tasks=self._tasks,
                    undeclared_for=GONE,
                    **self._vitals(),
                )
                self._tally.zero = heard.clock - (asked + monotonic()) / 2
                self._connector.store.forget_workers(connection, unseen_for=_FORGET)
            self._next_look(heard.next_look)
            self._undeclared(heard.undeclared)
            self._archived(heard.archived)
            if heard.drains and not self._drains:
                self._drains = True
                logger.info("an operator asks this worker to drain: finishing what is running")
                self._drain()
        except DBAPIError as error:
            if fault_of(error) is not Fault.LATE:
                raise
            # No outage: with one, the leases of others would not be looked at for a while.
            logger.warning("the rows of the workers are locked (%s)", error.orig)
        return False

    def hasten(self, *, apart: float = 0.0) -> None:
        """Write the row with the next chores: an operator is to see what has changed. `apart`: not before it is this many seconds old."""
        self.at = min(self.at, self._written + apart)

    def leave(self, connection: sa.Connection) -> None:
        """Strike this worker off."""
        try:
            with self._connector.begin(connection):
                self._connector.store.leave(connection, self._worker)
        except DBAPIError:
            logger.debug("could not strike the worker off", exc_info=True)
