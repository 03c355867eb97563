"""Deleting jobs that were kept long enough, or moving them to the archive."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from time import monotonic
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of, is_month_missing
from ...sql.parts import FIRST_TIME
from ...tasks.registry import Registry
from ...util.log import get_logger
from ..connections.service import Connector
from .chore import Chore, PagedChore, Turn

logger = get_logger(__name__)

#: Seconds between two checks of the months; and until the next try where another transaction is in the way.
_EVERY, _LOCKED = 3_600.0, 60.0


class KeepArchive(Chore):
    """Stores which tasks are archived, makes the months ahead, and drops months that were kept long enough.

    `months`: for how many months after its end a month is kept; None: forever. The maintenance thread alone uses it.
    """

    def __init__(self, connector: Connector, registry: Registry, *, months: int | None) -> None:
        super().__init__(connector, _EVERY, at=monotonic() if months is not None else math.inf)
        self._months = months
        declared = {name: task.archive for task in registry for name in (task.name, *task.aliases)}
        self._mine = frozenset(name for name, archived in declared.items() if archived)
        self._not_mine = frozenset(declared) - self._mine
        self._has_heard = False
        self._add: frozenset[str] = frozenset()
        self._remove: frozenset[str] = frozenset()
        self._try_again = 0.0
        """When to store the archived tasks again after the database refused it."""
        self.is_used = False
        """Whether there are tasks whose jobs are archived."""

    @property
    def is_known(self) -> bool:
        """Whether the archived tasks are known and stored: before that no job may be deleted."""
        return self._has_heard and not self._add

    def hear(self, names: Collection[str]) -> None:
        """Note which tasks are archived by the database. If this worker's code declares its tasks otherwise, that is stored.

        A worker removes a task only at its start: during a deployment, the older workers would remove what the new workers have
        declared.
        """
        there = frozenset(names)
        self._add = self._mine - there
        self._remove = self._remove & there if self._has_heard else self._not_mine & there
        self._has_heard = True
        was_used, self.is_used = self.is_used, bool(there)
        to_declare = (self._add or self._remove) and monotonic() >= self._try_again
        if to_declare or (self.is_used and not was_used):
            self.at = 0.0

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Declare, make, drop; each in a transaction of its own."""
        if self._add or self._remove:
            self._declare(connection)
        if self.is_used and self.make(connection, self._store.make_months_ahead) is None:
            self.at = monotonic() + _LOCKED
        if self._months is not None and not self._drop(connection, self._months):
            self.at = monotonic() + _LOCKED
        return False

    def _declare(self, connection: sa.Connection) -> None:
        try:
            with self._connector.begin_one(connection):
                self._store.declare_archived(connection, self._add, self._remove)
        except DBAPIError as error:
            if (fault := fault_of(error)) is Fault.AWAY:
                raise
            self._try_again = monotonic() + _LOCKED
            if fault is not Fault.LATE:
                logger.error(
                    "which tasks are archived cannot be written down: %s; this worker deletes no finished jobs meanwhile. "
                    "`sa-jobqueue grants --role ROLE --can work` prints the rights that its role needs",
                    error.orig,
                )
            return
        for name in sorted(self._remove):
            logger.warning("jobs of %s are not archived any more: the code of this worker says so", name)
        self.is_used = self.is_used or bool(self._add)
        self._add = self._remove = frozenset()

    def make(self, connection: sa.Connection, make: Callable[[sa.Connection], int]) -> int | None:
        """Let `make` make months, and return how many. None: another transaction is in the way, so try again later."""
        try:
            with self._connector.begin_one(connection):
                return make(connection)
        except DBAPIError as error:
            if fault_of(error) is not Fault.LATE:
                raise
            logger.debug("a month of the archive is made later: %s", error.orig)
            return None

    def _drop(self, connection: sa.Connection, months: int) -> bool:
        """Drop the months that were kept long enough; False: another transaction is in the way."""
        try:
            while True:
                with self._connector.begin_one(connection):
                    dropped = self._store.drop_archive_month(connection, months)
                if dropped is None:
                    return True
                logger.info("the archive of %s is dropped: it was kept for %d months", dropped, months)
        except DBAPIError as error:
            if fault_of(error) is not Fault.LATE:
                raise
            logger.debug("a month of the archive is dropped later: %s", error.orig)
            return False


#: Jobs deleted in one statement at most.
_PAGE = 1_000


class Prune(PagedChore):
    """Deletes in pages, which become smaller when a page takes too long or cannot be deleted, and then larger again."""

    def __init__(self, connector: Connector, archive: KeepArchive, *, every: float) -> None:
        super().__init__(connector, every)
        self._archive = archive
        self._seconds = min(connector.lease / 8, connector.limit)
        self._page = _PAGE
        # Where the next page begins, so that rows deleted before are not read again; and how far the pages have come.
        self._after = self._reached = FIRST_TIME

    def do_page(self, connection: sa.Connection) -> bool:
        """Delete a page in a transaction of its own, and find how large the next may be. Returns whether there may be more."""
        if not self._archive.is_known:
            return False
        page = self._page
        try:
            with self._connector.begin(connection):
                options: dict[str, Any] = {"seconds": self._seconds, "after": self._after}
                if self._archive.is_used:
                    options["archive"] = True
                if page > 1:
                    jobs, reached = self._store.prune(connection, limit=page, **options)
                    more = grows = jobs == page
                    self._after, self._reached = reached, max(reached, self._reached)
                else:
                    deleted = self._store.prune_first(connection, months=self._archive.is_used, **options)
                    more, grows = deleted is not None, deleted is True  # jobs that cannot be deleted come together
        except DBAPIError as error:
            if is_month_missing(error):
                return self._make_months(connection, page)
            fault = fault_of(error)
            if fault is Fault.AWAY or (page == 1 and fault is not Fault.LATE):
                raise
            # Rows of the application reference one of the jobs, or are locked, or have no index to be found by.
            self._page = max(page // 10, 1)
            if page > 1:
                return True
            # Not even the first job is found in time: an old snapshot keeps too many deleted rows.
            self._page = _PAGE
            self._after, before = self._reached, self._after
            return self._after > before
        if not more:
            self._page, self._after = _PAGE, FIRST_TIME
        elif grows:
            self._page = min(2 * page, _PAGE)
        return more

    def _make_months(self, connection: sa.Connection, page: int) -> bool:
        """Make the months of the archive that this page needs. Returns whether to try the page again now."""
        made = self._archive.make(connection, partial(self._store.make_months_of_page, limit=page, after=self._after))
        if made == 0:  # another worker has made them, or a table of that name is no part of the archive
            self._page = max(page // 10, 1)
        return made is not None
