"""Renewing the leases of what this worker holds."""

from __future__ import annotations

from time import monotonic

from sqlalchemy import Connection

from ...log import get_logger
from ...store import Store, default_store
from ..connections.service import Connector
from ..running.run import Run, Runs, Stop
from .chore import Chore, Turn

__all__ = ["Renewal"]

logger = get_logger(__name__)


class Renewal(Chore):
    """Renews what was claimed or renewed more than a third of a lease ago."""

    def __init__(self, connector: Connector, runs: Runs, *, lease: float, store: Store = default_store) -> None:
        super().__init__(lease / 6)
        self._connector, self._runs, self._lease, self._store = connector, runs, lease, store

    def do(self, connection: Connection, turn: Turn) -> bool:
        """Renew, stop the runs whose claims are lost, and those that are to be cancelled."""
        due = self._runs.unrenewed(self._lease / 3)
        if not due:
            return False
        now = monotonic()
        held = {run.job.id: run.job.claim_token for run in due}
        with self._connector.begin(connection):
            renewal = self._store.renew(connection, held, lease=self._lease)
        for run in due:
            if run.job.id in renewal.lost:
                self._lose(run)
            elif run.job.id not in renewal.locked:
                run.renewed = now
            if run.job.id in renewal.cancel_requested:
                self._runs.stop(run, Stop.CANCEL)
        return False

    def _lose(self, run: Run) -> None:
        if self._runs.lose(run):
            logger.warning("job %d: its lease is lost; it is stopped, and nothing it writes is kept", run.job.id)
            self._runs.stop(run, Stop.LOST)
