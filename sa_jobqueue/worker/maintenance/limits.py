"""Storing the limits that this worker's code declares, before its first claim and regularly after it; deleting old limit states.

A worker whose code declares none asks nothing: its heartbeat statement returns whether there are limits that no code declares any more.
"""

from __future__ import annotations

from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.limits.declared import limits_definition
from ...sql.limits.state import FIRST_STATE
from ...tasks.registry import Registry
from ...util.log import get_logger
from ..connections.pool import hang_up
from ..connections.service import Connector
from .chore import Chore, PagedChore, Turn
from .declaring import AGAIN, DECLARE_EVERY, GONE, Declarations, TimeToDeclare

logger = get_logger(__name__)

#: Seconds for which the first claim waits at most for a transaction that has locked the limits. The stored limits hold until it ends,
#: and a forgotten transaction must not keep workers from working.
_WAIT = 10.0


class DeclareLimits(Chore):
    """Stores the limits that the code declares, and deletes limits that no code declares any more."""

    def __init__(self, connector: Connector, registry: Registry) -> None:
        super().__init__(connector, AGAIN, at=0.0)
        definitions = {owner: limits_definition(limits) for owner, limits in registry.limits.items()}
        self.declares = bool(definitions)
        """Whether the code declares any limits."""
        self._declarations = Declarations(
            connector, self._store.declare_limits, definitions, "limits", "work", "the limit of {}".format, logger
        )
        self._time_to_declare = TimeToDeclare(monotonic())
        self._began: float | None = None
        """When `begin` was called first."""
        self._is_away = False
        self._drops = False
        """Whether there are limits to delete."""
        self._drop_again = 0.0
        """When to search for such limits again, at the earliest."""

    def begin(self) -> bool:
        """Store the limits before the first claim. False: not yet, so try again soon; the log says why. On any thread, before the
        worker's own threads have begun.
        """
        now = monotonic()
        if self._began is None:
            self._began = now
        connection: sa.Connection | None = None
        try:
            connection = self._connector.connect()
            if self._declarations.write_down(connection, now):
                return True
        except DBAPIError as error:
            if not self._is_away:
                self._is_away = True
                logger.warning("the limits that this worker's code declares wait for the database (%s)", error.orig)
            return False
        finally:
            if connection is not None:
                hang_up(connection)
        if now < self._began + _WAIT:
            return False
        logger.warning(
            "the limits that this worker's code declares are locked by another transaction; it claims by those that are there"
        )
        return True

    def due_at(self) -> float:
        """When to do it next, by `monotonic()`."""
        return 0.0 if self._drops else self._declarations.at

    def hear(self, are_undeclared: bool) -> None:
        """Note whether there are limits that no code has declared for long. Nothing is deleted before living workers had the time to
        declare theirs, as after an outage.
        """
        now = monotonic()
        if self._time_to_declare.is_over(now) and are_undeclared and now >= self._drop_again:
            self._drops, self._drop_again = True, now + DECLARE_EVERY

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Store the declared limits and delete undeclared ones, where that is due."""
        if (now := monotonic()) >= self._declarations.at:
            self._declarations.write_down(connection, now)
        if self._drops:
            self._drops = False
            with self._connector.begin(connection):
                dropped = self._store.drop_undeclared_limits(connection, after=GONE)
            for name in dropped:
                logger.warning("the limit of %s is deleted: no code declares it any more", name)
        return False


_PAGE = 1_000


class ForgetStates(PagedChore):
    """Deletes limit states that no longer affect any claim. It reads all rows: of keys that had a rate, or had to wait."""

    _after = FIRST_STATE

    def do_page(self, connection: sa.Connection) -> bool:
        """Check a page of limit states."""
        with self._connector.begin_one(connection):
            last, _ = self._store.forget_states(connection, after=self._after, limit=_PAGE)
        self._after = last or FIRST_STATE
        return last is not None
