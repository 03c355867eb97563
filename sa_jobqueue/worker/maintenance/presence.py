"""This worker's row in the table of workers: its heartbeat, and its end."""

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

#: The row of a worker that has not been seen for this long is deleted.
_FORGET = timedelta(days=1)


class Vitals(TypedDict):
    """The columns of a worker's row that change: see `WorkerRow`."""

    memory: int
    loop_lag: float
    pressure: str | None
    skipped: Mapping[str, str | None] | None


class Presence(Chore):
    """Keeps this worker's row in the table of workers.

    `tasks`: its tasks, as in `WorkerRow.tasks`. `vitals()`: the columns that change. `tally` gets the database's time. `next_look` is
    called with the seconds until a schedule is due, or None; `undeclared` with whether there are limits that no code declares any
    more; `archived` with the tasks whose jobs are archived. `drain` is called when an operator asks this worker to drain.

    `slots()`: the slots by queue. `change` is called with the slots that an operator wants, and returns the reason if it refuses them, else None.
    `changing()`: whether the change is not done yet. The row gets the result.
    """

    def __init__(
        self,
        connector: Connector,
        worker: uuid.UUID,
        *,
        slots: Callable[[], Mapping[str, int]],
        change: Callable[[Any], str | None],
        changing: Callable[[], bool],
        tasks: Mapping[str, Any],
        vitals: Callable[[], Vitals],
        tally: Tally,
        next_look: Callable[[float | None], None],
        undeclared: Callable[[bool], None],
        archived: Callable[[Collection[str]], None],
        drain: Callable[[], None],
    ) -> None:
        super().__init__(connector, max(min(connector.lease / 3, 20.0), 1.0), at=0.0)
        self._worker, self._vitals, self._tally = worker, vitals, tally
        self._fixed: dict[str, Any] = {
            "host": socket.gethostname(), "pid": os.getpid(), "version": __version__, "lease": connector.lease,
            "schema_version": CURRENT, "tasks": tasks, "undeclared_for": GONE,
        }  # fmt: skip
        self._written = 0.0
        """When the row was written last, by `monotonic()`."""
        self._next_look, self._undeclared, self._archived, self._drain = next_look, undeclared, archived, drain
        self._drains = False
        """Whether `drain` was called. Its thread alone uses it."""
        self._slots, self._change, self._changing = slots, change, changing
        self._answered: Mapping[str, Any] | None = None
        """The wanted slots, from `change` until the row has the result; and the reason of a refusal. Only its own thread uses both."""
        self._refused: str | None = None

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Write this worker's row, and delete the rows of workers that were not seen for long."""
        self._written = monotonic()
        try:
            with self._connector.begin(connection):
                asked = monotonic()
                answered = None if self._changing() else self._answered
                slots = self._slots()
                heard = self._store.enrol(
                    connection, self._worker, queues=list(slots), slots=slots, concurrency=sum(slots.values()),
                    answered=answered, refused=self._refused, **self._fixed, **self._vitals(),
                )  # fmt: skip
                self._tally.zero = heard.clock - (asked + monotonic()) / 2
                self._store.forget_workers(connection, unseen_for=_FORGET)
            self._next_look(heard.next_look)
            self._undeclared(heard.undeclared)
            self._archived(heard.archived)
            if heard.drains and not self._drains:
                self._drains = True
                logger.info("an operator asks this worker to drain: finishing what is running")
                self._drain()
            if answered is not None:
                self._answered = self._refused = None
            if heard.wanted is not None and self._answered is None and "refused" not in heard.wanted:
                self._follow(heard.wanted)
        except DBAPIError as error:
            if fault_of(error) is not Fault.LATE:
                raise
            # This is no outage: after an outage, the leases of others would not be checked for a while.
            logger.warning("the rows of the workers are locked (%s)", error.orig)
        return False

    def _follow(self, wanted: Mapping[str, Any]) -> None:
        """Change the slots as an operator wants, or refuse the change."""
        self._answered, slots = wanted, wanted.get("slots")
        self._refused = self._change(slots)
        said = slots if self._refused is None else f"{slots}, refused: {self._refused}"
        logger.info("an operator sets the slots of this worker: %s", said)
        if self._refused is not None:
            self.hasten()

    def hasten(self, *, apart: float = 0.0) -> None:
        """Write the row with the next chores, so that operators see a change. `apart`: not before it is this many seconds old."""
        self.at = min(self.at, self._written + apart)

    def leave(self, connection: sa.Connection) -> None:
        """Delete this worker's row."""
        try:
            with self._connector.begin(connection):
                self._store.leave(connection, self._worker)
        except DBAPIError:
            logger.debug("could not strike the worker off", exc_info=True)
