"""Ending jobs that wait although their expiry or deadline is over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import monotonic

import sqlalchemy as sa

from ...lifecycle import Event
from ...log import get_logger
from ...store import Late
from ...tasks import Registry
from ..connections.service import Connector
from ..observer import Observer
from .chore import Chore, Turn

__all__ = ["EndLate"]

logger = get_logger(__name__)

#: Seconds between two looks, into an index that is mostly empty.
_EVERY = 10.0
_PAGE = 1_000


class EndLate(Chore):
    """Cancels jobs that were not started by their expiry, and fails those that still wait at their deadline, a page at a time."""

    def __init__(self, connector: Connector, *, registry: Registry, observer: Observer) -> None:
        super().__init__(_EVERY, at=monotonic() + random.uniform(0, _EVERY))
        self._connector, self._registry, self._observer = connector, registry, observer

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """End some pages of jobs."""
        while True:
            with self._connector.begin(connection):
                # First: they are in the way of the others.
                forgotten = self._connector.store.forget_expiry(connection, limit=_PAGE)
                expired = self._connector.store.end_expired(connection, limit=_PAGE)
                overdue = self._connector.store.end_overdue(connection, limit=_PAGE)
            self._tell(expired, Event.CANCEL)
            self._tell(overdue, Event.FAIL)
            if expired:
                logger.info("jobs that were not started by their expiry are cancelled: %d", len(expired))
            if overdue:
                logger.warning("jobs that still waited at their deadline have failed: %d", len(overdue))
            if max(len(forgotten), len(expired), len(overdue)) < _PAGE:
                return False
            if turn.is_over:
                return True

    def _tell(self, late: Sequence[Late], event: Event) -> None:
        for job in late:
            task = self._registry.get(job.task)
            self._observer.end_late(job.queue, None if task is None else task.name, event)
