"""The archive: which tasks' jobs are moved to it, as this worker's code says, and its months, which are made ahead and dropped.

A worker asks nothing for it: the statement that says that it is alive returns the tasks whose jobs are archived, by the code of any worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...log import get_logger
from ...store import Fault, fault_of
from ...tasks import Registry
from ..connections.service import Connector
from .chore import Chore, Turn

__all__ = ["KeepArchive"]

logger = get_logger(__name__)

#: Seconds between two looks at the months; and until the next try where another transaction is in the way.
_EVERY, _LOCKED = 3_600.0, 60.0


class KeepArchive(Chore):
    """Writes down which tasks are archived, makes the months ahead, and drops those that were kept long enough.

    `months`: for how many months after its end a month is kept; None: for ever. The maintenance thread alone uses it.
    """

    def __init__(self, connector: Connector, registry: Registry, *, months: int | None) -> None:
        super().__init__(_EVERY, at=monotonic() if months is not None else math.inf)
        self._connector, self._months = connector, months
        said = {name: task.archive for task in registry for name in (task.name, *task.aliases)}
        self._mine = frozenset(name for name, archived in said.items() if archived)
        self._not_mine = frozenset(said) - self._mine
        self._has_heard = False
        self._add: frozenset[str] = frozenset()
        self._remove: frozenset[str] = frozenset()
        self._try_again = 0.0
        """When to write that down again after it was refused."""
        self.is_used = False
        """Whether there are tasks whose jobs are moved."""

    @property
    def is_known(self) -> bool:
        """Whether it is known, and written down, which tasks are archived: before that no job may be deleted."""
        return self._has_heard and not self._add

    def hear(self, names: Collection[str]) -> None:
        """These tasks are archived. What this worker's code says of its own tasks is written down if it is not so.

        Only at its start a worker takes a task out: while a deployment goes on, the older workers would take out what the new ones have
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
        if self.is_used and self.make(connection, self._connector.store.make_months_ahead) is None:
            self.at = monotonic() + _LOCKED
        if self._months is not None and not self._drop(connection, self._months):
            self.at = monotonic() + _LOCKED
        return False

    def _declare(self, connection: sa.Connection) -> None:
        try:
            with self._connector.begin_one(connection):
                self._connector.store.declare_archived(connection, self._add, self._remove)
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
                    dropped = self._connector.store.drop_archive_month(connection, months)
                if dropped is None:
                    return True
                logger.info("the archive of %s is dropped: it was kept for %d months", dropped, months)
        except DBAPIError as error:
            if fault_of(error) is not Fault.LATE:
                raise
            logger.debug("a month of the archive is dropped later: %s", error.orig)
            return False
