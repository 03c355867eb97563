"""The chores of maintenance, what they share, and the governor of the pressure on the database."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from time import monotonic
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...sql.workers import Pressure
from ..connections.service import Connector
from ..running.joblog import lasting


@dataclass(frozen=True, slots=True)
class Turn:
    """How long a chore of several pages may go on: the other chores wait, among them the renewal of leases."""

    until: float
    ending: threading.Event

    @property
    def is_over(self) -> bool:
        """Whether to stop after this page: the others wait, or the worker ends."""
        return self.ending.is_set() or monotonic() >= self.until


class Chore(ABC):
    """Work to do every `every` seconds, first at `at`; None: at a random time, so that workers do not come together.

    The maintenance thread alone uses it.
    """

    def __init__(self, connector: Connector, every: float, *, at: float | None = None) -> None:
        self._connector, self._store, self.every = connector, connector.store, every
        self.at = monotonic() + random.uniform(0, every) if at is None else at
        """When to do it next, by `monotonic()`; 0.0: at once."""
        self.quiet_until = 0.0
        """Not to be done before, unless at once: a survey found nothing to do. The claimer's thread writes it."""

    def due_at(self) -> float:
        """When to do it next, by `monotonic()`."""
        return max(self.at, self.quiet_until) if self.at else 0.0

    @abstractmethod
    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Do it once. True: there is more to do, so come again soon."""


class PagedChore(Chore):
    """A chore that is done page by page, each in transactions of its own."""

    @abstractmethod
    def do_page(self, connection: sa.Connection) -> bool:
        """Do a page. True: there may be more."""

    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Do pages until there are no more, or the turn is over."""
        while self.do_page(connection):
            if turn.is_over:
                return True
        return False


def missing_right(error: DBAPIError, can: str = "work") -> str:
    """The end of a log line about `error`: how to give the worker's role the right that it lacks; "" for other errors."""
    if getattr(error.orig, "sqlstate", None) != "42501":
        return ""
    return f"; `sa-jobqueue grants --role ROLE --can {can}` prints the right that this worker's role lacks"


# ---- Decides for which share of its slots a worker claims, by the pressure on the database. Pure: it reads nothing and acts on nothing.

#: The least share. Each queue keeps one slot, whatever the share; a queue has at most 10,000.
_LEAST = 1e-4
#: The growth of the share at a reading well below all thresholds, and at a reading just below one of them.
_STEP, _SMALL_STEP = 0.1, 0.02
#: Up to this part of a threshold a value is well below it.
_WELL_BELOW = 0.8


class _Measure(NamedTuple):
    """The value that a threshold limits, and its wording."""

    of: Callable[[Pressure], float | None]
    say: Callable[[float], str]


def _counted(one: str, several: str) -> Callable[[float], str]:
    return lambda number: f"1 {one}" if number == 1 else f"{number:,.0f} {several}"


def _lasted(text: str) -> Callable[[float], str]:
    return lambda seconds: text.format(lasting(seconds))


_MEASURES: Mapping[str, _Measure] = {
    "max_snapshot_age": _Measure(attrgetter("snapshot_seconds"), _lasted("a transaction has been open for {}")),
    "max_lock_waits": _Measure(
        attrgetter("lock_waits"), _counted("session waits for a lock", "sessions wait for locks")
    ),
    "max_replication_lag": _Measure(attrgetter("replication_seconds"), _lasted("a standby is {} behind")),
    "max_active_connections": _Measure(attrgetter("active"), _counted("session is active", "sessions are active")),
}


class Turned(Enum):
    """A change that a reading caused."""

    BEGUN = "begun"
    RECOVERED = "recovered"


class Governor:
    """Decides by the pressure for which share of its slots the worker may claim. `thresholds`: the values, by setting."""

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        self._thresholds = thresholds
        self.share = 1.0
        """From just above 0 to 1, where nothing is held back."""
        self.reason: str | None = None
        """The threshold that was passed last, and the value. None: nothing is held back."""

    def hear(self, pressure: Pressure) -> Turned | None:
        """Decide by this reading."""
        ratios = {name: self._ratio(name, pressure) for name in self._thresholds}
        worst = max(ratios, key=ratios.__getitem__)
        if ratios[worst] > 1:
            turned = Turned.BEGUN if self.reason is None else None
            value = _MEASURES[worst].say(_MEASURES[worst].of(pressure) or 0)
            self.share = max(self.share / 2, _LEAST)
            self.reason = f"{value} ({worst} is {self._thresholds[worst]:g})"
            return turned
        if self.reason is None:
            return None
        self.share += _STEP if ratios[worst] <= _WELL_BELOW else _SMALL_STEP
        return Turned.RECOVERED if self.share >= 1.0 and self.let_go() else None

    def let_go(self) -> bool:
        """Hold back nothing from now on. Returns whether something was held back."""
        held, self.share, self.reason = self.reason is not None, 1.0, None
        return held

    def _ratio(self, name: str, pressure: Pressure) -> float:
        value, threshold = _MEASURES[name].of(pressure) or 0, self._thresholds[name]
        if threshold == 0:
            return 2.0 if value else 0.0
        return value / threshold
