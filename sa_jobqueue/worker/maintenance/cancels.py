"""Hearing of cancels sooner than by the renewal of leases."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from sqlalchemy import Connection

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

    def announce(self) -> None:
        """A cancel was announced, perhaps of a job that runs here. For any thread; maintenance is to be woken after it."""
        self._announced = True
        self.at = 0.0

    def do(self, connection: Connection, turn: Turn) -> bool:
        """Ask about what has been here for a while, or about all if a cancel was announced."""
        announced, self._announced = self._announced, False
        now = monotonic()
        if not announced and self._listening() and now < self._looked + _SELDOM:
            return False
        running = [run for run in self._runs if run.stop is None and (announced or run.arrived <= now - _EVERY)]
        if not running:
            return False
        self._looked = now
        with self._connector.begin(connection):
            held = {run.job.id: run.job.claim_token for run in running}
            asked = self._connector.store.cancelled_among(connection, held)
        for run in running:
            if run.job.id in asked:
                self._runs.stop(run, Stop.CANCEL)
        return False
