"""Lanes: the slots of one queue in this process, and the jobs that wait for them.

A slot is taken by a runner, a coroutine or a thread, that pulls one job after another and gives the slot up when
there is none; so a busy lane costs no task, timer or thread start per job. Coroutines and threads share the slots of a
lane, and jobs start in the order in which they were claimed, whichever kind they are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import count
from time import monotonic

from .flight import Flight

__all__ = ["Kind", "Lane"]


class Kind(Enum):
    """What runs a handler."""

    ASYNC = 0
    THREAD = 1


class Lane:
    """One queue's slots. `start(kind, n)` starts n more runners; each calls `next(kind)` until it gets None."""

    def __init__(self, name: str, limit: int, *, buffer: int, start: Callable[[Lane, Kind, int], None]) -> None:
        self.name, self.limit = name, limit
        self._start = start
        self._most = buffer
        self._buffer = 0.0
        self._waiting: dict[Kind, deque[tuple[int, Flight]]] = {Kind.ASYNC: deque(), Kind.THREAD: deque()}
        self._numbers = count()
        self._lock = threading.Lock()
        self._running = 0
        self._ended = 0
        self._measured = (monotonic(), 0)
        self._closed = False
        self.stuck = 0
        """Slots held by handlers that timed out and do not come back."""

    def feed(self, flights: list[Flight]) -> list[Flight]:
        """Take claimed jobs in, and start runners for them as far as there are slots; what is left if it is closed."""
        with self._lock:
            if self._closed:
                return flights
            starts = {Kind.ASYNC: 0, Kind.THREAD: 0}
            for flight in flights:
                kind = Kind.ASYNC if flight.task.is_async else Kind.THREAD
                self._waiting[kind].append((next(self._numbers), flight))
                if self._running < self.limit:
                    self._running += 1
                    starts[kind] += 1
        for kind, runners in starts.items():
            if runners:
                self._start(self, kind, runners)
        return []

    def next(self, kind: Kind) -> Flight | None:
        """The next job for a runner of this kind; None: the runner's slot was given up, or passed to the other kind."""
        with self._lock:
            mine, others = self._waiting[kind], self._waiting[Kind.THREAD if kind is Kind.ASYNC else Kind.ASYNC]
            if mine and not (others and others[0][0] < mine[0][0]):
                return mine.popleft()[1]
            if not others:
                self._running -= 1
                return None
        self._start(self, Kind.THREAD if kind is Kind.ASYNC else Kind.ASYNC, 1)
        return None

    def spare(self, runners: int) -> None:
        """So many runners could not be started; their slots are free, and their jobs wait for other runners."""
        with self._lock:
            self._running -= runners

    def ended(self, flight: Flight) -> None:
        """A handler has come back; counted for the buffer."""
        self._ended += 1
        if flight.abandoned:
            self.keep(flight)

    def abandon(self, flight: Flight) -> None:
        """A handler has timed out and cannot be stopped; its slot stays taken until its thread ends."""
        with self._lock:
            flight.abandoned = True
            self.stuck += 1

    def keep(self, flight: Flight) -> None:
        """It has ended after all."""
        with self._lock:
            if flight.abandoned:
                flight.abandoned = False
                self.stuck -= 1

    def free(self) -> int:
        """How many jobs to claim: the free slots, and some ahead if jobs end faster than a claim takes."""
        with self._lock:
            if self._closed:
                return 0
            return max(
                self.limit
                + int(self._buffer)
                - self._running
                - len(self._waiting[Kind.ASYNC])
                - len(self._waiting[Kind.THREAD]),
                0,
            )

    def measure(self) -> None:
        """Size the buffer: what ends in a twentieth of a second, some rounds of finish and claim."""
        now, ended = monotonic(), self._ended
        before, count_before = self._measured
        if now - before >= 0.05:
            rate = (ended - count_before) / (now - before)
            self._buffer = min(self._most, max(rate * 0.05, self._buffer / 2))
            self._measured = (now, ended)

    def stale(self, seconds: float) -> list[Flight]:
        """Take out the jobs that have waited longer than `seconds` for a slot."""
        before = monotonic() - seconds
        taken: list[Flight] = []
        with self._lock:
            for waiting in self._waiting.values():
                while waiting and waiting[0][1].arrived <= before:
                    taken.append(waiting.popleft()[1])
        return taken

    def close(self) -> list[Flight]:
        """Start no more; the jobs that were waiting."""
        with self._lock:
            self._closed = True
            left = [flight for waiting in self._waiting.values() for _, flight in waiting]
            for waiting in self._waiting.values():
                waiting.clear()
            return left

    @property
    def running(self) -> int:
        """Slots taken."""
        return self._running

    @property
    def waiting(self) -> int:
        """Jobs claimed and not started."""
        return len(self._waiting[Kind.ASYNC]) + len(self._waiting[Kind.THREAD])
