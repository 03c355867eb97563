"""Hearing of cancels more often than leases are renewed."""

from __future__ import annotations

from time import monotonic

from sqlalchemy import Connection

from ..connections.service import Connector
from ..running.run import Runs, Stop
from .chore import Chore, Turn

__all__ = ["Cancels"]

#: Seconds between two checks. A run that is younger is not asked about: most have ended by then.
_EVERY = 1.0


class Cancels(Chore):
    """Stops the runs whose job an operator asked to cancel."""

    def __init__(self, connector: Connector, runs: Runs) -> None:
        super().__init__(_EVERY)
        self._connector, self._runs = connector, runs

    def do(self, connection: Connection, turn: Turn) -> bool:
        """Ask about what has been here for a while."""
        running = [run for run in self._runs if run.arrived <= monotonic() - _EVERY and run.stop is None]
        if not running:
            return False
        with self._connector.begin(connection):
            held = {run.job.id: run.job.claim_token for run in running}
            asked = self._connector.store.cancelled_among(connection, held)
        for run in running:
            if run.job.id in asked:
                self._runs.stop(run, Stop.CANCEL)
        return False
