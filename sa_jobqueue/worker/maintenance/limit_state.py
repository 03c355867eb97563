"""Forgetting what claims have kept about limits and says nothing any more."""

from __future__ import annotations

import random
from time import monotonic

import sqlalchemy as sa

from ...store import FIRST_STATE
from ..connections.service import Connector
from .chore import Chore, Turn

__all__ = ["ForgetStates"]

_PAGE = 1_000


class ForgetStates(Chore):
    """Looks at all rows, a page at a time: of keys that had a rate, or had to wait. Where there are none, that is one look into an
    empty table.
    """

    def __init__(self, connector: Connector, *, every: float) -> None:
        super().__init__(every, at=monotonic() + random.uniform(0, every))
        self._connector = connector
        self._after = FIRST_STATE

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Look at some pages."""
        while True:
            with self._connector.begin_one(connection):
                last, _ = self._connector.store.forget_states(connection, after=self._after, limit=_PAGE)
            self._after = last or FIRST_STATE
            if last is None:
                return False
            if turn.is_over:
                return True
