"""Staying for jobs that a dead worker held, where the worker would leave because nothing is due."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

from sqlalchemy import Connection

from .. import operations
from ..log import get_logger
from ..models import Job
from .connections import Connector

__all__ = ["LostJobs"]

logger = get_logger(__name__)

#: Leases, and a second, after its start by which a worker has rescued what it can: it waits for one at most, and looks a quarter
#: (of a short one, half) of that later.
_RESCUED_BY = 1.5
#: So many expired leases are looked through for those of our queues.
_LIMIT = 1_000


class LostJobs:
    """The jobs of `queues` whose leases have run out.

    A worker that nobody was there before rescues nothing in its first lease. If each one left sooner, as from cron, nobody
    would ever do it.
    """

    def __init__(self, connector: Connector, queues: Collection[str], *, lease: float, job: type[Job]) -> None:
        self._connector, self._queues, self._lease, self._job = connector, queues, lease, job
        self._rescued_by = 0.0
        """When maintenance has rescued what it can."""
        self._awaited = False
        """Whether there were some at the last look."""

    def begin(self) -> None:
        """The worker begins now."""
        self._rescued_by = monotonic() + _RESCUED_BY * self._lease + 1.0

    def awaited(self, connection: Connection) -> bool:
        """Whether some are about to be due, or may have become due since the last look."""
        before, self._awaited = self._awaited, monotonic() < self._rescued_by and self._are_there(connection)
        if self._awaited and not before:
            most = self._rescued_by - monotonic()
            logger.info(
                "nothing is due but jobs that a lost worker held: staying to rescue them, for at most %.0f s", most
            )
        return self._awaited or before

    def _are_there(self, connection: Connection) -> bool:
        with self._connector.begin_one(connection):
            lost = operations.expired(connection, limit=_LIMIT, job=self._job)
        return any(found.queue in self._queues for found in lost)
