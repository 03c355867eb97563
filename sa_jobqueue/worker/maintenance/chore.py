"""What a chore of maintenance is."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from time import monotonic
from typing import NamedTuple

import sqlalchemy as sa

from ...sql.workers import Pressure
from ..running.joblog import lasting


@dataclass(frozen=True, slots=True)
class Turn:
    """How long a chore of several pages may go on before the others have theirs, leases to renew among them."""

    until: float
    ending: threading.Event

    @property
    def is_over(self) -> bool:
        """Whether to stop after this page: the others wait, or the worker ends."""
        return self.ending.is_set() or monotonic() >= self.until


class Chore(ABC):
    """Something to do every `every` seconds, first at `at`. The maintenance thread alone uses it."""

    def __init__(self, every: float, *, at: float = 0.0) -> None:
        self.every, self.at = every, at

    def due_at(self) -> float:
        """When it is to be done next."""
        return self.at

    @abstractmethod
    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Do it once. True: there is more to do, so come again soon."""


# ---- Decides how much of its slots a worker claims for, from what presses on the database. Pure: it reads nothing and acts on nothing.

#: The least share. Of each queue one slot is left, whatever the share; a queue has at most 10,000.
_LEAST = 1e-4
#: What the share grows by at a reading that is well below all thresholds, and by one that is only just below one of them.
_STEP, _SMALL_STEP = 0.1, 0.02
#: Up to this part of a threshold a value is well below it.
_WELL_BELOW = 0.8


class _Measure(NamedTuple):
    """What a threshold measures, and how its values are worded."""

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
    """What a reading has changed."""

    BEGUN = "begun"
    RECOVERED = "recovered"


class Governor:
    """Hears of the pressure, and says for which share of its slots the worker may claim. `thresholds`: the values, by setting."""

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        self._thresholds = thresholds
        self.share = 1.0
        """From just above 0 to 1, where nothing is held back."""
        self.reason: str | None = None
        """Which threshold was passed last, and by what. None: nothing is held back."""

    def hear(self, pressure: Pressure) -> Turned | None:
        """Decide by this reading."""
        ratios = {name: self._ratio(name, pressure) for name in self._thresholds}
        worst = max(ratios, key=ratios.__getitem__)
        if ratios[worst] > 1:
            turned = Turned.BEGUN if self.reason is None else None
            self.share, self.reason = max(self.share / 2, _LEAST), self._said(worst, pressure)
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

    def _said(self, name: str, pressure: Pressure) -> str:
        measure = _MEASURES[name]
        return f"{measure.say(measure.of(pressure) or 0)} ({name} is {self._thresholds[name]:g})"
