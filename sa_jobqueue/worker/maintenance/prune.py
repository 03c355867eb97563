"""Deleting jobs that were kept long enough."""

from __future__ import annotations

import random
from time import monotonic
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ...store import FIRST_TIME, Fault, fault_of
from ..connections.service import Connector
from .chore import Chore, Turn

__all__ = ["Prune"]

#: Jobs deleted in one statement at most.
_PAGE = 1_000


class Prune(Chore):
    """Deletes in pages, which become smaller when one takes too long or cannot be deleted, and then larger again."""

    def __init__(self, connector: Connector, *, every: float) -> None:
        super().__init__(every, at=monotonic() + random.uniform(0, every))
        self._connector = connector
        self._seconds = min(connector.lease / 8, connector.limit)
        self._page = _PAGE
        # Where the next page begins, so that rows deleted before are not walked over again; and how far the pages have come.
        self._after = self._reached = FIRST_TIME

    def do(self, connection: Connection, turn: Turn) -> bool:
        """Delete some pages."""
        while self._delete_page(connection):
            if turn.is_over:
                return True
        return False

    def _delete_page(self, connection: Connection) -> bool:
        """Delete a page in a transaction of its own, and find how large the next may be. Whether there may be more."""
        page = self._page
        try:
            with self._connector.begin(connection):
                options: dict[str, Any] = {"seconds": self._seconds, "after": self._after}
                if page > 1:
                    jobs, reached = self._connector.store.prune(connection, limit=page, **options)
                    more = grows = jobs == page
                    self._after, self._reached = reached, max(reached, self._reached)
                else:
                    deleted = self._connector.store.prune_first(connection, **options)
                    more, grows = deleted is not None, deleted is True  # those that cannot be deleted come together
        except DBAPIError as error:
            fault = fault_of(error)
            if fault is Fault.AWAY or (page == 1 and fault is not Fault.LATE):
                raise
            # Rows of the application's need one of them, or are locked, or have no index to be found by.
            self._page = max(page // 10, 1)
            if page > 1:
                return True
            # Not even the first is found in time: too many deleted rows are still there for some old snapshot.
            self._page = _PAGE
            self._after, before = self._reached, self._after
            return self._after > before
        if not more:
            self._page, self._after = _PAGE, FIRST_TIME
        elif grows:
            self._page = min(2 * page, _PAGE)
        return more
