"""Deleting jobs that were kept long enough, or moving them to the archive."""

from __future__ import annotations

import random
from time import monotonic
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...store import FIRST_TIME, Fault, fault_of, is_month_missing
from ..connections.service import Connector
from .archive import KeepArchive
from .chore import Chore, Turn

__all__ = ["Prune"]

#: Jobs deleted in one statement at most.
_PAGE = 1_000


class Prune(Chore):
    """Deletes in pages, which become smaller when one takes too long or cannot be deleted, and then larger again."""

    def __init__(self, connector: Connector, archive: KeepArchive, *, every: float) -> None:
        super().__init__(every, at=monotonic() + random.uniform(0, every))
        self._connector, self._archive = connector, archive
        self._seconds = min(connector.lease / 8, connector.limit)
        self._page = _PAGE
        # Where the next page begins, so that rows deleted before are not walked over again; and how far the pages have come.
        self._after = self._reached = FIRST_TIME

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Delete some pages."""
        if not self._archive.is_known:
            return False
        while self._delete_page(connection):
            if turn.is_over:
                return True
        return False

    def _delete_page(self, connection: sa.Connection) -> bool:
        """Delete a page in a transaction of its own, and find how large the next may be. Whether there may be more."""
        page = self._page
        try:
            with self._connector.begin(connection):
                options: dict[str, Any] = {"seconds": self._seconds, "after": self._after}
                if self._archive.is_used:
                    options["archive"] = True
                if page > 1:
                    jobs, reached = self._connector.store.prune(connection, limit=page, **options)
                    more = grows = jobs == page
                    self._after, self._reached = reached, max(reached, self._reached)
                else:
                    deleted = self._connector.store.prune_first(connection, months=self._archive.is_used, **options)
                    more, grows = deleted is not None, deleted is True  # those that cannot be deleted come together
        except DBAPIError as error:
            if is_month_missing(error):
                return self._make_months(connection, page)
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

    def _make_months(self, connection: sa.Connection, page: int) -> bool:
        """Make the months of the archive that this page needs. Whether to try it again now."""
        store, after = self._connector.store, self._after
        made = self._archive.make(connection, lambda own: store.make_months_of_page(own, limit=page, after=after))
        if made == 0:  # another worker has made them, or there is a table of that name which is no part of the archive
            self._page = max(page // 10, 1)
        return made is not None
