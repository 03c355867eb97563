"""Enqueueing the jobs of schedules, each at its time.

There is no leader: every worker checks at each tick, by the database's clock, and the first worker that locks the schedule enqueues
its job. A worker without schedules asks nothing: its heartbeat statement returns when the next tick is, and a schedule that is made
or changed is announced to the workers that listen.
"""

from __future__ import annotations

import math
import random
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of
from ...sql.schedules.declared import definition_of
from ...sql.schedules.due import Ticked
from ...tasks.registry import Registry
from ...util.log import get_logger
from ..connections.service import Connector
from .chore import Chore, Turn
from .declaring import AGAIN, DECLARE_EVERY, GONE, Declarations, TimeToDeclare

logger = get_logger(__name__)

#: Schedules in one transaction.
_PAGE = 500
#: Seconds until schedules that another transaction has locked are checked again: the first time, and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0


class EnqueueTicks(Chore):
    """Enqueues the jobs of due schedules, and is due again at the next tick."""

    def __init__(self, connector: Connector, registry: Registry) -> None:
        super().__init__(connector, AGAIN, at=math.inf)
        definitions = {name: definition_of(schedule) for name, schedule in registry.schedules.items()}
        self._declarations = Declarations(
            connector, self._store.declare, definitions, "schedules", "schedule", "schedule {!r}".format, logger
        )
        self._check_at = math.inf
        """When to search for schedules that no code declares any more, by `monotonic()`."""
        self._time_to_declare = TimeToDeclare(monotonic())
        self._wait = _FIRST_WAIT
        self._announced = False
        """Whether a schedule has changed. The listener's thread sets it, the maintenance thread resets it."""

    @property
    def at(self) -> float:
        """When to do it next, by `monotonic()`."""
        return 0.0 if self._announced else min(self._at, self._declarations.at, self._check_at)

    @at.setter
    def at(self, at: float) -> None:
        self._at = at

    def announce(self) -> None:
        """Note that a schedule has changed. For any thread; it wakes no thread."""
        self._announced = True

    def hear(self, seconds: float | None) -> None:
        """Note that the next tick is this number of seconds from now; None: there is no schedule."""
        if seconds is not None:
            self.at = min(self._at, monotonic() + seconds)
            if self._check_at == math.inf:
                self._check_at = monotonic() + DECLARE_EVERY

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Store the declared schedules where that is due, enqueue some pages, and find out when the next tick is."""
        self._announced = False
        if (now := monotonic()) >= self._declarations.at:
            self._declarations.write_down(connection, now)
        if monotonic() >= self._check_at:
            self._check(connection)
        while (found := self._page(connection, turn)) == _PAGE:
            if turn.is_over:
                return True
        self._wait = _FIRST_WAIT if found else self._wait
        with self._connector.begin_one(connection):
            seconds = self._store.next_look(connection)
        self.at = math.inf
        if seconds is not None and seconds <= 0 and not found:
            # Another worker enqueues it just now, or an operator has locked the row.
            seconds, self._wait = self._wait, min(2 * self._wait, _LONGEST_WAIT)
        self.hear(seconds)
        return False

    def _page(self, connection: sa.Connection, turn: Turn) -> int:
        """Enqueue the ticks of a page of schedules. Returns how many of them were due."""
        ticked = Ticked()
        try:
            self._enqueue(connection, ticked)
        except DBAPIError as error:
            if not ticked.ids or fault_of(error) is Fault.AWAY:
                raise
            # One of the jobs cannot be written: enqueue each alone. Each may wait for a lock, and there are leases to renew meanwhile;
            # schedules that are left stay due.
            for schedule in ticked.ids:
                self._enqueue_alone(connection, schedule)
                if turn.is_over:
                    break
        return len(ticked.ids)

    def _enqueue_alone(self, connection: sa.Connection, id: int) -> None:
        try:
            self._enqueue(connection, Ticked(), only=id)
        except DBAPIError as error:
            fault = fault_of(error)
            if fault is Fault.AWAY:
                raise
            with self._connector.begin(connection):
                name = self._store.set_aside(connection, id, str(error.orig), briefly=fault is Fault.LATE)
            if name is not None:
                logger.error("schedule %r: its job cannot be enqueued: %s", name, error.orig)

    def _enqueue(self, connection: sa.Connection, ticked: Ticked, *, only: int | None = None) -> None:
        with self._connector.begin(connection):
            self._store.enqueue_due(connection, ticked, limit=_PAGE, random=random.random, only=only)
        for name, reason in ticked.bad:
            logger.error("schedule %r cannot be used, and is skipped until it is mended: %s", name, reason)
        for name, number in ticked.paused:
            logger.error("schedule %r is paused: its last %d jobs have failed", name, number)

    def _check(self, connection: sa.Connection) -> None:
        """Pause schedules that no code declares any more; not before living workers had the time to declare them, as after an outage."""
        now = monotonic()
        self._check_at = now + DECLARE_EVERY * random.uniform(0.9, 1.0)
        if not self._time_to_declare.is_over(now):
            return
        with self._connector.begin(connection):
            paused = self._store.pause_undeclared(connection, after=GONE)
        for name in paused:
            logger.warning("schedule %r is paused: no code declares it any more", name)
