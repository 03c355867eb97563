"""A claimed job in this process, from the claim to the moment its outcome is written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from enum import Enum, StrEnum
from time import monotonic
from typing import Any

from ...context import ClaimedJob
from ...lifecycle import Change
from ...tasks import Task

__all__ = ["Kind", "Run", "Runs", "Stop"]


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


class Run:
    """One claimed job. `stop` is set once, by whoever first wants it to end."""

    __slots__ = (
        "abandoned",
        "arrived",
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
        "timeout_at",
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
        self.timeout_at: float | None = None
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


class Runs:
    """Every claim that this process holds, by job id: what is to be renewed, and what a reconnect may not give back.

    A run may outlast its claim: `all()` are those of the claims, and those that go on though theirs is lost.
    """

    def __init__(self) -> None:
        self._held: dict[int, Run] = {}
        self._lost: dict[tuple[int, int | None], Run] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Run]:
        with self._lock:
            return iter(list(self._held.values()))

    def all(self) -> list[Run]:
        """What goes on here, or waits for its turn, whether its claim is held or lost."""
        with self._lock:
            return [*self._held.values(), *self._lost.values()]

    def add(self, runs: list[Run]) -> list[Run]:
        """Hold these claims. Returns those that are lost by that: of jobs that were taken away, and claimed here again."""
        held = self._held
        with self._lock:
            lost = [held[run.job.id] for run in runs if run.job.id in held]
            held.update((run.job.id, run) for run in runs)
            self._lost.update(((run.job.id, run.job.claim_token), run) for run in lost)
        return lost

    def lose(self, run: Run) -> bool:
        """This claim is lost; False if it was not held."""
        with self._lock:
            if self._held.get(run.job.id) is not run:
                return False
            del self._held[run.job.id]
            self._lost[run.job.id, run.job.claim_token] = run
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
        run = self._held.get(id)
        if run is not None and run.job.claim_token == token:
            del self._held[id]
        elif self._lost:
            self._lost.pop((id, token), None)

    def unrenewed(self, seconds: float) -> list[Run]:
        """Those claimed or last renewed more than `seconds` ago."""
        before = monotonic() - seconds
        return [run for run in self if run.renewed <= before]

    def claims(self) -> list[tuple[int, int]]:
        """All of them, as (id, token)."""
        return [(run.job.id, run.job.claim_token) for run in self]
