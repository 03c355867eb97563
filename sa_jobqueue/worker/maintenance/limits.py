"""Writing down the limits that this worker's code declares: before its first claim, and every now and then.

A worker whose code declares none asks nothing: the statement that says that it is alive returns whether there are limits that no code
declares any more.
"""

from __future__ import annotations

import random
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.limits.declared import limits_definition
from ...sql.limits.state import FIRST_STATE
from ...sql.schedules.declared import Declaring
from ...tasks.registry import Registry
from ...util.log import get_logger
from ..connections.pool import hang_up
from ..connections.service import Connector
from .chore import Chore, Turn
from .declaring import AGAIN, DECLARE_EVERY, GONE, Declarations, TimeToDeclare

logger = get_logger(__name__)

#: Seconds for which the first claim waits at most for a transaction that has locked the limits. What holds until that ends is in the
#: table, and a forgotten transaction must not keep workers from working.
_WAIT = 10.0


class DeclareLimits(Chore):
    """Writes down what the code declares, and deletes what no code declares any more."""

    def __init__(self, connector: Connector, registry: Registry) -> None:
        super().__init__(AGAIN)
        self._connector = connector
        definitions = {owner: limits_definition(limits) for owner, limits in registry.limits.items()}
        self.declares = bool(definitions)
        """Whether the code declares any."""

        def write(connection: sa.Connection) -> Declaring:
            return connector.store.declare_limits(connection, definitions, gone=GONE)

        self._declarations = Declarations(
            connector, write, what="limits", grant="work", named="the limit of {}".format, logger=logger, any=self.declares
        )  # fmt: skip
        self._time_to_declare = TimeToDeclare(monotonic())
        self._began: float | None = None
        """When `begin` was called first."""
        self._is_away = False
        self._drops = False
        """Whether there is something to delete."""
        self._drop_again = 0.0
        """When to search for that again, at the earliest."""

    def begin(self) -> bool:
        """Write them down before the first claim. False: not yet, so try again soon; the log says why. On any thread, before this
        worker's own have begun.
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
        """When it is to be done next."""
        return 0.0 if self._drops else self._declarations.at

    def hear(self, are_undeclared: bool) -> None:
        """Whether there are limits that no code has declared for long. Nothing is done before living workers had the time to, as after
        an outage.
        """
        now = monotonic()
        if self._time_to_declare.is_over(now) and are_undeclared and now >= self._drop_again:
            self._drops, self._drop_again = True, now + DECLARE_EVERY

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Declare what is to be declared, and delete what is to be deleted."""
        if (now := monotonic()) >= self._declarations.at:
            self._declarations.write_down(connection, now)
        if self._drops:
            self._drops = False
            with self._connector.begin(connection):
                dropped = self._connector.store.drop_undeclared_limits(connection, after=GONE)
            for name in dropped:
                logger.warning("the limit of %s is deleted: no code declares it any more", name)
        return False


# ---- Forgetting what claims have kept about limits and says nothing any more.

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
        """Go over some pages."""
        while True:
            with self._connector.begin_one(connection):
                last, _ = self._connector.store.forget_states(connection, after=self._after, limit=_PAGE)
            self._after = last or FIRST_STATE
            if last is None:
                return False
            if turn.is_over:
                return True
