"""A claimed job in this process, from the claim to the moment its outcome is written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from enum import Enum, StrEnum
from time import monotonic
from typing import Any

from ..context import ClaimedJob
from ..lifecycle import Change
from ..tasks import Task

__all__ = ["Flight", "Flights", "Kind", "Stop"]


class Kind(Enum):
    """What runs a handler."""

    ASYNC = 0
    THREAD = 1


class Stop(StrEnum):
    """Why a run should stop before its end."""

    CANCEL = "cancel"  # somebody asked for it
    LOST = "lost"  # the claim is no longer valid
    TIMEOUT = "timeout"  # it took too long
    SHUTDOWN = "shutdown"  # the worker leaves


class Flight:
    """One claimed job. `stop` is set once, by whoever first wants it to end."""

    __slots__ = (
        "abandoned",
        "arrived",
        "deadline",
        "interrupted",
        "job",
        "kind",
        "noticed",
        "renewed",
        "reported",
        "runner",
        "settled",
        "started",
        "stop",
        "task",
        "undecoded",
    )

    def __init__(
        self, job: ClaimedJob, task: Task[Any, Any, Any], arrived: float | None = None, claimed_at: float | None = None
    ) -> None:
        self.job = job
        self.task = task
        self.kind = Kind.ASYNC if task.is_async else Kind.THREAD
        self.arrived = monotonic() if arrived is None else arrived
        self.renewed = self.arrived if claimed_at is None else claimed_at  # its arguments may have been long in coming
        self.started: float | None = None
        self.deadline: float | None = None
        self.stop: Stop | None = None
        self.runner: asyncio.Task[Any] | None = None
        self.interrupted = False
        """The runner was cancelled on behalf of this job."""
        self.noticed = False
        """The handler has looked at `ctx.cancelled` and seen True."""
        self.undecoded = True
        """The handler has not been called yet."""
        self.abandoned = False
        """It was given up while its handler still runs."""
        self.settled = False
        """There is an outcome."""
        self.reported = False
        """Nothing of it goes on here any more: its outcome is in the writer's hands, or is written."""

    def notice_stop(self) -> bool:
        """Whether the handler should come to an end; remembers that it was told so."""
        if self.stop is None:
            return False
        self.noticed = True
        return True

    def ask_to_stop(self, why: Stop) -> None:
        """Tell the run to end; the first reason stays. Call it on the event loop for an async handler."""
        if self.stop is None:
            self.stop = why
            if self.runner is not None:
                self.interrupted = self.runner.cancel()

    def settle(self) -> bool:
        """True for the first caller only: one outcome per flight, whatever a thread still does after its timeout."""
        first, self.settled = not self.settled, True
        return first


class Flights:
    """Every claim that this process holds, by job id: what is to be renewed, and what a reconnect may not give back.

    A run may outlast its claim: `runs()` are those of the claims, and those that go on though theirs is lost.
    """

    def __init__(self) -> None:
        self._held: dict[int, Flight] = {}
        self._lost: dict[tuple[int, int | None], Flight] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Flight]:
        with self._lock:
            return iter(list(self._held.values()))

    def runs(self) -> list[Flight]:
        """What goes on here, or waits for its turn, whether its claim is held or lost."""
        with self._lock:
            return [*self._held.values(), *self._lost.values()]

    def add(self, flights: list[Flight]) -> list[Flight]:
        """Hold these claims. Returns those that are lost by that: of jobs that were taken away, and claimed here again."""
        held = self._held
        with self._lock:
            lost = [held[flight.job.id] for flight in flights if flight.job.id in held]
            held.update((flight.job.id, flight) for flight in flights)
            self._lost.update(((flight.job.id, flight.job.claim_token), flight) for flight in lost)
        return lost

    def lose(self, flight: Flight) -> bool:
        """This claim is lost; False if it was not held."""
        with self._lock:
            if self._held.get(flight.job.id) is not flight:
                return False
            del self._held[flight.job.id]
            self._lost[flight.job.id, flight.job.claim_token] = flight
            return True

    def drop(self, id: int, token: int) -> None:
        """This claim has ended. (A later claim of the same job may be held by now.)"""
        with self._lock:
            self._drop(id, token)

    def drop_all(self, changes: list[Change]) -> None:
        """The claims of these changes have ended."""
        with self._lock:
            for change in changes:
                self._drop(change.id, change.claim_token)

    def _drop(self, id: int, token: int | None) -> None:
        flight = self._held.get(id)
        if flight is not None and flight.job.claim_token == token:
            del self._held[id]
        elif self._lost:
            self._lost.pop((id, token), None)

    def unrenewed(self, seconds: float) -> list[Flight]:
        """Those claimed or last renewed more than `seconds` ago."""
        before = monotonic() - seconds
        return [flight for flight in self if flight.renewed <= before]

    def claims(self) -> list[tuple[int, int]]:
        """All of them, as (id, token)."""
        return [(flight.job.id, flight.job.claim_token) for flight in self]
