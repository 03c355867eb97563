"""Lanes: the slots of one queue in this process, and the jobs that wait for them.

Runners, coroutines and threads, pull jobs from a lane, and stop when there is none they may take. Whoever takes a job
while more are waiting calls one more runner, which comes to its turn when the first one waits for something, or is
through; so a handler that never waits costs no task, timer or thread switch per job, and handlers that do wait fill
the slots one after the other. Jobs start in the order in which they were claimed, whichever kind they are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic

from .run import Kind, Run

__all__ = ["Slots"]

#: A runner comes within milliseconds of being called, or, after so many seconds, something is in its way.
_BLOCKED = 1.0
#: As many jobs are claimed ahead as end in so many seconds: some rounds of finish and claim, also where handlers leave
#: the service thread little of the interpreter. (With half of this, of 32 threads that use ctx.session 4 had no job.)
_AHEAD = 0.2


class Slots:
    """One queue's slots. `call(lane, kind)` brings one more runner, which begins with `next(kind, arriving=True)`.

    It raises nothing: where no runner can be had, it says so by `not_coming`.
    """

    def __init__(self, name: str, limit: int, *, buffer: int, call: Callable[[Slots, Kind], None]) -> None:
        self.name, self.limit = name, limit
        self._open = limit
        """Those that may be taken now: all, or none while it is paused."""
        self._call = call
        self._most = buffer
        self._buffer = 0.0
        self._waiting: deque[Run] = deque()
        self._lock = threading.Lock()
        self._running = 0
        self._called: float | None = None
        """When a runner was called that has not come yet: no other is called meanwhile."""
        self._ended = 0
        self._measured = (monotonic(), 0)
        self._closed = False
        self.stuck = 0
        """Slots held by handlers that timed out and do not come back."""

    def feed(self, runs: list[Run]) -> list[Run]:
        """Take claimed jobs in; what is left if the lane is closed."""
        with self._lock:
            if self._closed:
                return runs
            self._waiting.extend(runs)
            wanted = self._wanted()
        if wanted is not None:
            self._call(self, wanted)
        return []

    def next(self, kind: Kind, *, ended: Run | None = None, arriving: bool = False) -> Run | None:
        """The next job for a runner of this kind, whose last one has `ended`; None: there is nothing for it to do."""
        run: Run | None = None
        wanted: Kind | None = None
        with self._lock:
            if ended is not None:
                self._end(ended)
            elif arriving:
                self._called = None
            waiting = self._waiting
            if waiting and self._running < self._open:
                if waiting[0].kind is kind:
                    run = waiting.popleft()
                    self._running += 1
                if self._called is None:
                    wanted = self._wanted()
        if wanted is not None:
            self._call(self, wanted)
        return run

    def end(self, run: Run) -> None:
        """A handler has come back, and its runner takes no other job."""
        with self._lock:
            self._end(run)
            wanted = self._wanted()
        if wanted is not None:
            self._call(self, wanted)

    def _end(self, run: Run) -> None:
        self._running -= 1
        self._ended += 1
        if run.abandoned:
            self._keep(run)

    def _wanted(self) -> Kind | None:
        """The kind of runner to be called now, if any; then it counts as called."""
        if self._called is not None or not self._waiting or self._running >= self._open:
            return None
        self._called = monotonic()
        return self._waiting[0].kind

    def not_coming(self) -> None:
        """The runner that was called cannot be had; the jobs wait until another is called."""
        with self._lock:
            self._called = None

    def abandon(self, run: Run) -> None:
        """A handler has timed out and cannot be stopped; its slot stays taken until it comes back."""
        with self._lock:
            run.abandoned = True
            self.stuck += 1

    def keep(self, run: Run) -> None:
        """It has ended after all."""
        with self._lock:
            if run.abandoned:
                self._keep(run)

    def _keep(self, run: Run) -> None:
        run.abandoned = False
        self.stuck -= 1

    def free(self) -> int:
        """How many jobs to claim: the free slots, and some ahead if jobs end faster than a claim takes."""
        with self._lock:
            if self._closed or not self._open or not self.hungry:
                return 0
            return max(self.limit + int(self._buffer) - self._running - len(self._waiting), 0)

    @property
    def hungry(self) -> bool:
        """Whether the jobs that wait may soon not be enough; until then a claim would bring a few, and cost as much.

        Nor are any wanted as long as a runner that was called does not come: a handler blocks the event loop.
        """
        if (called := self._called) is not None and monotonic() - called > _BLOCKED:
            return False
        return len(self._waiting) <= self._buffer / 2

    def measure(self) -> None:
        """Size the buffer anew."""
        now, ended = monotonic(), self._ended
        before, count_before = self._measured
        if now - before >= 0.05:
            rate = (ended - count_before) / (now - before)
            self._buffer = min(self._most, max(rate * _AHEAD, self._buffer / 2))
            self._measured = (now, ended)

    def stale(self, seconds: float) -> list[Run]:
        """Take out the jobs that have waited longer than `seconds` for a slot."""
        before = monotonic() - seconds
        taken: list[Run] = []
        with self._lock:
            while self._waiting and self._waiting[0].arrived <= before:
                taken.append(self._waiting.popleft())
            if taken:
                # It was made for faster ones: else as many would be claimed ahead again, then half of it, and so on.
                self._buffer = 0.0
        return taken

    def pause(self) -> None:
        """Start no more for now, and claim none; what waits goes back in time, as behind handlers that do not end."""
        with self._lock:
            self._open = 0

    def resume(self) -> None:
        """Start jobs again."""
        with self._lock:
            self._open = self.limit
            wanted = self._wanted()
        if wanted is not None:
            self._call(self, wanted)

    def close(self) -> Iterable[Run]:
        """Start no more; the jobs that were waiting."""
        with self._lock:
            self._closed = True
            left, self._waiting = self._waiting, deque()
            return left

    @property
    def running(self) -> int:
        """Slots taken."""
        return self._running

    @property
    def waiting(self) -> int:
        """Jobs claimed and not started."""
        return len(self._waiting)
