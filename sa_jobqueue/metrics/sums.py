"""The sums over all worker processes of one supervisor, those that are gone among them.

What a process has counted stays in the sums when it ends, so no counter goes back. Its gauges go with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from ..histogram import BUCKETS
from ..tally import TaskTally
from ..worker.state import WorkerState
from .snapshot import Snapshot

__all__ = ["Counters", "Heard", "Sums", "Totals"]


@dataclass(frozen=True, slots=True)
class Counters:
    """What was counted, by one process or by several."""

    tallies: Mapping[tuple[str, str], TaskTally] = field(default_factory=dict[tuple[str, str], TaskTally])
    claimed: int = 0
    claims: tuple[int, ...] = (0,) * BUCKETS
    claim_seconds: float = 0.0

    @classmethod
    def of(cls, snapshot: Snapshot) -> Counters:
        """Those of one process."""
        state = snapshot.state
        return cls({one.key: one for one in snapshot.tallies}, state.claimed, state.claims, state.claim_seconds)

    def plus(self, other: Counters) -> Counters:
        """Both together."""
        tallies = dict(self.tallies)
        for key, one in other.tallies.items():
            tallies[key] = tallies[key].plus(one) if key in tallies else one
        claims = tuple(a + b for a, b in zip(self.claims, other.claims, strict=True))
        return Counters(tallies, self.claimed + other.claimed, claims, self.claim_seconds + other.claim_seconds)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a process has said last, and when by `monotonic()`."""

    snapshot: Snapshot
    at: float


@dataclass(frozen=True, slots=True)
class Totals:
    """All counters, and the states of the processes that live, by the number of each."""

    counters: Counters
    live: Mapping[int, WorkerState]

    @classmethod
    def of_one(cls, snapshot: Snapshot) -> Totals:
        """Those of a process without a supervisor."""
        return cls(Counters.of(snapshot), {1: snapshot.state})


class Sums:
    """Adds up what processes say. A process is (its number, which start of that number it is). For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._past = Counters()
        """Of processes that will say nothing more."""
        self._heard: dict[tuple[int, int], Heard] = {}
        self._ended: set[tuple[int, int]] = set()
        """Processes that have ended, whose last words may still be on their way."""

    def hear(self, process: tuple[int, int], snapshot: Snapshot, *, at: float | None = None) -> None:
        """A process has said this, in place of what it said before."""
        with self._lock:
            self._heard[process] = Heard(snapshot, monotonic() if at is None else at)

    def end(self, process: tuple[int, int]) -> None:
        """A process has ended: its gauges go."""
        with self._lock:
            if process in self._heard:
                self._ended.add(process)

    def close(self, process: tuple[int, int]) -> None:
        """A process will say nothing more: what it has counted is kept with that of the others that are gone."""
        with self._lock:
            self._ended.discard(process)
            if (last := self._heard.pop(process, None)) is not None:
                self._past = self._past.plus(Counters.of(last.snapshot))

    def live(self) -> dict[int, Heard]:
        """What the processes that live have said last, by their numbers."""
        with self._lock:
            return {process[0]: heard for process, heard in sorted(self._heard.items()) if process not in self._ended}

    def totals(self) -> Totals:
        """All of it."""
        with self._lock:
            counters = _sum([self._past, *(Counters.of(heard.snapshot) for heard in self._heard.values())])
        return Totals(counters, {number: heard.snapshot.state for number, heard in self.live().items()})


def _sum(all_counters: Iterable[Counters]) -> Counters:
    total = Counters()
    for one in all_counters:
        total = total.plus(one)
    return total
