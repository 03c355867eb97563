"""Enqueueing the jobs of schedules, each at its time.

There is no leader: every worker looks at each tick, by the database's clock, and the first one that locks the schedule enqueues
its job. A worker without schedules asks nothing: the statement that says that it is alive returns when the next tick is, and a
schedule that is made or changed is announced to the workers that listen.
"""

from __future__ import annotations

import math
import random
from datetime import timedelta
from time import monotonic

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ...log import get_logger
from ...store import Fault, Ticked, definition_of, fault_of
from ...tasks import Registry
from ..connections.service import Connector
from .chore import Chore, Turn

__all__ = ["EnqueueTicks"]

logger = get_logger(__name__)

#: Schedules in one transaction.
_PAGE = 500
#: Seconds until the next try after an error.
_AGAIN = 1.0
#: Seconds until the next look at schedules that another transaction has locked: the first time, and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0
#: Seconds between two times that a worker says what its code declares.
_DECLARE_EVERY = 60.0
#: What no living worker has declared for this long is not declared any more.
_GONE = timedelta(minutes=5)


class EnqueueTicks(Chore):
    """Enqueues the jobs of due schedules, and is due again at the next tick."""

    def __init__(self, connector: Connector, registry: Registry) -> None:
        super().__init__(_AGAIN, at=math.inf)
        self._connector = connector
        self._declared = {name: definition_of(one) for name, one in registry.schedules.items()}
        self._declare_at = 0.0 if self._declared else math.inf
        self._check_at = math.inf
        """When to look for schedules that no code declares any more, by `monotonic()`."""
        self._well_since, self._well_until = monotonic(), monotonic()
        """Since when, and until when, this worker could have declared what it declares."""
        self._wait = _FIRST_WAIT
        self._named: set[str] = set()
        """Schedules of which the log has said that their definition here is not in use."""
        self._announced = False
        """Whether a schedule has changed. The listener's thread sets it, the maintenance thread resets it."""

    @property
    def at(self) -> float:
        """When to do it next, by `monotonic()`."""
        return 0.0 if self._announced else min(self._at, self._declare_at, self._check_at)

    @at.setter
    def at(self, at: float) -> None:
        self._at = at

    def announce(self) -> None:
        """A schedule has changed. For any thread; it wakes none."""
        self._announced = True

    def hear(self, seconds: float | None) -> None:
        """The next tick is this number of seconds from now; None: there is no schedule."""
        if seconds is not None:
            self.at = min(self._at, monotonic() + seconds)
            if self._check_at == math.inf:
                self._check_at = monotonic() + _DECLARE_EVERY

    def do(self, connection: Connection, turn: Turn) -> bool:
        """Declare what is to be declared, enqueue some pages, and find out when the next tick is."""
        self._announced = False
        if monotonic() >= self._declare_at:
            self._declare(connection)
        if monotonic() >= self._check_at:
            self._check(connection)
        while (found := self._page(connection, turn)) == _PAGE:
            if turn.is_over:
                return True
        self._wait = _FIRST_WAIT if found else self._wait
        with self._connector.begin_one(connection):
            seconds = self._connector.store.next_look(connection)
        self.at = math.inf
        if seconds is not None and seconds <= 0 and not found:
            # Another worker enqueues it just now, or an operator has locked the row.
            seconds, self._wait = self._wait, min(2 * self._wait, _LONGEST_WAIT)
        self.hear(seconds)
        return False

    def _page(self, connection: Connection, turn: Turn) -> int:
        """Enqueue the ticks of a page of schedules. Returns how many of them were due."""
        ticked = Ticked()
        try:
            self._enqueue(connection, ticked)
        except DBAPIError as error:
            if not ticked.ids or fault_of(error) is Fault.AWAY:
                raise
            # One of them cannot be written: each by itself. Each may wait for a lock, and there are leases to renew meanwhile; those
            # that are left stay due.
            for one in ticked.ids:
                self._enqueue_alone(connection, one)
                if turn.is_over:
                    break
        return len(ticked.ids)

    def _enqueue_alone(self, connection: Connection, id: int) -> None:
        try:
            self._enqueue(connection, Ticked(), only=id)
        except DBAPIError as error:
            fault = fault_of(error)
            if fault is Fault.AWAY:
                raise
            with self._connector.begin(connection):
                named = self._connector.store.set_aside(connection, id, str(error.orig), briefly=fault is Fault.LATE)
            if named is not None:
                logger.error("schedule %r: its job cannot be enqueued: %s", named, error.orig)

    def _enqueue(self, connection: Connection, ticked: Ticked, *, only: int | None = None) -> None:
        with self._connector.begin(connection):
            self._connector.store.enqueue_due(connection, ticked, limit=_PAGE, random=random.random, only=only)
        for name, reason in ticked.bad:
            logger.error("schedule %r cannot be used, and is skipped until it is mended: %s", name, reason)
        for name, number in ticked.paused:
            logger.error("schedule %r is paused: its last %d jobs have failed", name, number)

    def _declare(self, connection: Connection) -> None:
        """Write down what this worker's code declares, and say that it does."""
        self._declare_at = monotonic() + _AGAIN  # if it cannot be done now
        try:
            with self._connector.begin(connection):
                result = self._connector.store.declare(connection, self._declared, gone=_GONE)
        except DBAPIError as error:
            if (fault := fault_of(error)) is Fault.AWAY:
                raise
            if fault is not Fault.LATE:
                self._declare_at = monotonic() + _DECLARE_EVERY
                logger.error(
                    "the schedules that this worker's code declares cannot be written down: %s%s",
                    error.orig,
                    _mend(error),
                )
            return  # the ticks of those that are there are not to wait for it
        for name in result.made:
            logger.info("schedule %r is new", name)
        for name in result.changed:
            logger.info("schedule %r is changed to what the code declares", name)
        for name in result.resumed:
            logger.info("schedule %r goes on: code declares it again", name)
        for name in result.taken:
            self._warn(name, "was made at run time; the code that declares it must give another name")
        for name in result.superseded:
            self._warn(name, "has a newer definition than this worker's code declares, which is left")
        if not result.locked:
            self._declare_at = monotonic() + _DECLARE_EVERY * random.uniform(0.9, 1.0)

    def _warn(self, name: str, what: str) -> None:
        if name not in self._named:
            self._named.add(name)
            logger.warning("schedule %r %s", name, what)

    def _check(self, connection: Connection) -> None:
        """Pause what no code declares any more; not before living workers had the time to declare it, as after an outage."""
        now = monotonic()
        self._check_at = now + _DECLARE_EVERY * random.uniform(0.9, 1.0)
        if now > self._well_until + 2 * _DECLARE_EVERY:
            self._well_since = now
        self._well_until = now
        if now - self._well_since < _GONE.total_seconds():
            return
        with self._connector.begin(connection):
            paused = self._connector.store.pause_undeclared(connection, after=_GONE)
        for name in paused:
            logger.warning("schedule %r is paused: no code declares it any more", name)


def _mend(error: DBAPIError) -> str:
    """What to do where the worker's role may not write schedules."""
    if getattr(error.orig, "sqlstate", None) != "42501":
        return ""
    return "; `sa-jobqueue grants --role ROLE --can schedule` prints the right that this worker's role lacks"
