"""Hearing of cancels sooner than by the renewal of leases."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import sqlalchemy as sa

from ..connections.service import Connector
from ..running.run import Runs, Stop
from .chore import Chore, Turn

__all__ = ["Cancels"]

#: Seconds between two looks where no announcement is heard. A run that is younger is not asked about: most have ended by then.
_EVERY = 1.0
#: Seconds between two looks where announcements are heard: an UPDATE by hand announces nothing.
_SELDOM = 5.0


class Cancels(Chore):
    """Stops the runs whose job an operator asked to cancel. `listening()`: whether that is announced."""

    def __init__(self, connector: Connector, runs: Runs, listening: Callable[[], bool]) -> None:
        super().__init__(_EVERY)
        self._connector, self._runs, self._listening = connector, runs, listening
        self._announced = False
        """Whether a cancel was announced. Set by any thread, reset by the maintenance thread."""
        self._looked = 0.0
        """When all runs were last asked about that are here for a while."""
        self._told = self._seen = 0.0
        """When a cancel was last announced, and when the runs that were here were last seen."""

    def announce(self) -> None:
        """A cancel was announced, perhaps of a job that runs here. For any thread; maintenance is to be woken after it."""
        self._announced = True
        self.at = 0.0

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Ask about what has been here for a while, or about all if a cancel was announced."""
        announced, self._announced = self._announced, False
        now = monotonic()
        running = [run for run in self._runs if run.stop is None]
        if announced:
            self._told = self._looked = now
        elif self._listening() and now < self._looked + _SELDOM:
            # Of those that have come since the last look, as after a fetch of long arguments, the announcement may be of one.
            running = [run for run in running if run.claimed < self._told and run.arrived > self._seen - _EVERY]
        else:
            running = [run for run in running if run.arrived <= now - _EVERY]
            self._looked = now if running else self._looked
        self._seen = now
        if not running:
            return False
        with self._connector.begin(connection):
            held = {run.job.id: run.job.claim_token for run in running}
            asked = self._connector.store.cancelled_among(connection, held)
        for run in running:
            if run.job.id in asked:
                self._runs.stop(run, Stop.CANCEL)
        return False
