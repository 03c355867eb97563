"""`--drain` waits for jobs that a dead worker held: they will be due when they have been rescued."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

import sqlalchemy as sa

from ...log import get_logger
from ...statements.workers import serves
from ..connections.service import Connector

__all__ = ["ExpiredJobs"]

logger = get_logger(__name__)

#: Leases after start by which a worker has looked for expired ones: it waits one healthy lease, then at most a quarter (half, if
#: the lease is short). One second is added.
_RESCUED_BY = 1.5
#: Expired leases that are searched for jobs of our queues.
_LIMIT = 1_000


class ExpiredJobs:
    """The jobs of `queues` whose leases have run out. Only for the claimer's thread, except `begin`.

    In its first lease a worker rescues nothing, unless another worker was there before. Workers that cron starts, say, and that
    end sooner would never rescue anything.
    """

    def __init__(self, connector: Connector, queues: Collection[str]) -> None:
        self._connector, self._queues = connector, queues
        self._rescued_by = 0.0
        """When maintenance will have rescued what it can, by `monotonic()`."""
        self._awaited = False
        """Whether there were some at the last call of `awaited`."""

    def begin(self) -> None:
        """The worker starts now."""
        self._rescued_by = monotonic() + _RESCUED_BY * self._connector.lease + 1.0

    def awaited(self, connection: sa.Connection) -> bool:
        """Whether some will be due soon, or may have become due since the last call."""
        before, self._awaited = self._awaited, monotonic() < self._rescued_by and self._are_there(connection)
        if self._awaited and not before:
            most = self._rescued_by - monotonic()
            logger.info(
                "nothing is due but jobs that a dead worker held: staying to rescue them, for at most %.0f s", most
            )
        return self._awaited or before

    def _are_there(self, connection: sa.Connection) -> bool:
        with self._connector.begin_one(connection):
            lost = self._connector.store.expired(connection, limit=_LIMIT)
        return any(serves(self._queues, found.queue) for found in lost)
