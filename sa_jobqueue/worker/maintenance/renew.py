"""Renewing the leases of what this worker holds."""

from __future__ import annotations

import random
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...log import get_logger
from ...store import Fault, fault_of
from ..connections.service import Connector
from ..running.run import Run, Runs, Stop
from .chore import Chore, Turn

__all__ = ["Renewal"]

logger = get_logger(__name__)

#: Leases renewed in one statement at most.
_PAGE = 10_000
#: Jobs named in the log whose leases cannot be renewed.
_NAMED = 20


class Renewal(Chore):
    """Renews what was claimed or renewed more than a third of a lease ago.

    A trigger of the application's may refuse one row, or make it take too long, and would keep all leases from being renewed.
    So after a failure fewer are renewed at a time, and a job whose lease cannot be renewed is tried alone, after all others. Where
    one took too long, the rest is renewed one by one and gets less time each: others may take as long, and leases run out meanwhile.
    """

    def __init__(self, connector: Connector, runs: Runs) -> None:
        super().__init__(connector.lease / 6)
        self._connector, self._runs = connector, runs
        self._seconds = max(connector.lease / 8, 1.0)
        """For one statement: less than the deadline of maintenance."""
        self._seconds_alone = max(self._seconds / 4, 0.5)
        self._page = _PAGE
        self._one_by_one = False
        self._refused: set[Run] = set()

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Renew, stop the runs whose claims are lost, and those that are to be cancelled."""
        due = self._runs.unrenewed(self._connector.lease / 3)
        self._refused.intersection_update(due)
        others = [run for run in due if run not in self._refused]
        while others:
            part = others[: self._page]
            if (error := self._try(connection, part)) is None:
                if not self._one_by_one:
                    self._page = min(2 * self._page, _PAGE)
                del others[: len(part)]
            else:
                if fault_of(error) is Fault.LATE:  # where time is the matter, another try of some takes as long
                    self._one_by_one = True
                if len(part) > 1:
                    self._page = 1 if self._one_by_one else len(part) // 2
                else:
                    self._refuse(others.pop(0), error)
            if turn.is_over and others:
                return True
        self._one_by_one = False
        for run in random.sample(list(self._refused), len(self._refused)):
            if turn.is_over:
                break
            if self._try(connection, [run], refused=True) is None:
                self._refused.remove(run)
        return False

    def _try(self, connection: sa.Connection, part: list[Run], *, refused: bool = False) -> DBAPIError | None:
        """Renew these leases. Returns the error if one of them may be why the database refuses."""
        seconds = self._seconds_alone if self._one_by_one or refused else self._seconds
        try:
            self._renew(connection, part, seconds)
        except DBAPIError as error:
            if fault_of(error) is Fault.AWAY:
                raise
            return error
        return None

    def _refuse(self, run: Run, error: DBAPIError) -> None:
        if len(self._refused) < _NAMED:
            logger.error("job %d: its lease cannot be renewed: %s", run.job.id, error.orig)
        self._refused.add(run)

    def _renew(self, connection: sa.Connection, part: list[Run], seconds: float) -> None:
        now = monotonic()
        held = {run.job.id: run.job.claim_token for run in part}
        with self._connector.begin(connection):
            renewal = self._connector.store.renew(connection, held, lease=self._connector.lease, seconds=seconds)
        for run in part:
            if run.job.id in renewal.lost:
                self._lose(run)
            elif run.job.id not in renewal.locked:
                run.renewed = now
            if run.job.id in renewal.cancel_requested:
                self._runs.stop(run, Stop.CANCEL)

    def _lose(self, run: Run) -> None:
        if not self._runs.lose(run):
            return
        goes_on = not run.settled  # else it has just ended, or its end says what became of it
        self._runs.stop(run, Stop.LOST)  # an async handler may have ended before this returns
        if goes_on:
            logger.warning("job %d: its lease is lost; it is stopped, and nothing it writes is kept", run.job.id)
