"""Freeing unique keys whose time is over, and those that changes by hand have left behind."""

from __future__ import annotations

import random
from time import monotonic

import sqlalchemy as sa

from ...log import get_logger
from ..connections.service import Connector
from .chore import Chore, Turn

__all__ = ["FreeKeys"]

logger = get_logger(__name__)

_PAGE = 1_000


class FreeKeys(Chore):
    """Looks at all keys, a page at a time. Where there are none, that is one look into an empty table."""

    def __init__(self, connector: Connector, *, every: float) -> None:
        super().__init__(every, at=monotonic() + random.uniform(0, every))
        self._connector = connector
        self._after = ""

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Free some pages of keys."""
        while True:
            with self._connector.begin(connection):
                expired = self._connector.store.drop_expired_keys(connection, limit=_PAGE)
                last, freed = self._connector.store.free_stray_keys(connection, after=self._after, limit=_PAGE)
            if freed:
                logger.warning("%d unique keys were held by jobs that had ended or were gone; they are free now", freed)
            self._after = last or ""
            if last is None and expired < _PAGE:
                return False
            if turn.is_over:
                return True
