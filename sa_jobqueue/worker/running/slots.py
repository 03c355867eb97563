"""The slots of one queue in this process, and the jobs that wait for them.

Runners, which are tasks or threads, pull jobs from the slots and stop when there is no job they may take. A runner that
takes a job while more are waiting calls one more runner, whose turn comes when the first runner waits for something or has
ended. So a handler that never waits costs no task, timer or thread switch per job, and handlers that do wait fill the
slots one by one. Jobs start in the order in which they were claimed, whatever their kind.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from math import ceil, inf
from time import monotonic
from typing import Any

from ...errors import ConfigurationError
from ...sql.workers import EVERY_QUEUE, checked_slots
from .gathering import BatchRun, Gathering, runs_of
from .run import Kind, Run

#: Seconds after which a runner that was called and has not come means a blocked event loop. Normally it takes milliseconds.
_BLOCKED = 1.0
#: Jobs are claimed ahead for this many seconds: enough for some rounds of finish and claim, also where handlers leave the
#: service thread little of the interpreter. (With half as much, 4 of 32 threads that use ctx.session had no job.)
_AHEAD = 0.2
#: The most jobs of batch tasks in one claim.
_MOST_JOBS = 2_000


class AllSlots(dict[str, "Slots"]):
    """The slots of a worker by queue. Queues without their own slots use the slots of "*".

    Only the claimer's thread adds queues, so other threads copy the values before they iterate. A removed queue stays, with no slots:
    some of its jobs may still run.
    """

    def __init__(self, queues: Mapping[str, int], *, buffer: int, call: Callable[[Slots, Kind], None]) -> None:
        self._make = partial(Slots, buffer=buffer, call=call)
        super().__init__((name, self._make(name, limit)) for name, limit in queues.items())

    def __missing__(self, queue: str) -> Slots:
        if queue != EVERY_QUEUE and EVERY_QUEUE in self:
            return self[EVERY_QUEUE]
        raise KeyError(queue)

    @property
    def limits(self) -> dict[str, int]:
        """The slots of each served queue. For any thread."""
        return {name: slots.limit for name, slots in list(self.items()) if slots.limit}

    def changed(self, wanted: Any) -> dict[str, int]:
        """The slots of all queues after the change that an operator wants; 0: the queue is removed. Raises ConfigurationError."""
        before, wanted = self.limits, checked_slots(wanted, least=0)
        for name, limit in wanted.items():
            if (EVERY_QUEUE in before or name == EVERY_QUEUE) and bool(limit) != (name in before):
                raise ConfigurationError(
                    f"--queue {name}={limit}: a running worker cannot add or remove '*', and a worker with '*' cannot add or "
                    "remove other queues; start the worker with other options"
                )
        after = {**before, **wanted}
        if not any(after.values()):
            raise ConfigurationError("no queue would be left; `sa-jobqueue drain` ends the worker")
        return after

    def change(self, limits: Mapping[str, int]) -> list[Run]:
        """Have these slots. Returns the waiting jobs for which there is no room any more. On the claimer's thread."""
        beyond: list[Run] = []
        for name, limit in limits.items():
            if name in self:
                beyond += self[name].resize(limit)
            elif limit:
                self[name] = self._make(name, limit)
        return beyond


class Slots:
    """One queue's slots. `call(slots, kind)` brings one more runner, which begins with `next(kind)`.

    `call` raises nothing: where no runner can be had, it calls `not_coming`. All methods are for any thread, except
    `measure`, which is the service thread's. Fields are written under the lock. `free`, `hungry` and the counts for
    people read single fields without it: a value that is a moment old does no harm there.
    """

    def __init__(self, name: str, limit: int, *, buffer: int, call: Callable[[Slots, Kind], None]) -> None:
        self.name, self.limit = name, limit
        self._open = limit
        """Slots that may be taken now: all, or none while the queue is paused."""
        self.paused = False
        """Whether no job is started for now."""
        self._call = call
        self._most = buffer
        self._buffer = 0.0
        """Jobs to claim ahead. The service thread writes it; maintenance sets it to 0 when jobs have waited too long."""
        self._waiting: deque[Run] = deque()
        self._gathering = Gathering()
        """The batches that still take jobs. Under the lock; the service thread reads `per_slot`."""
        self._along = self._ended_along = 0
        """The number of jobs that have shared the slot of their batch's first job: begun and ended, so far."""
        self._lock = threading.Lock()
        self.running = 0
        """Slots taken."""
        self._called: float | None = None
        """When a runner was called that has not come yet; no other is called meanwhile."""
        self.ended = 0
        """Slots that were given back, so far."""
        self._measured = (monotonic(), 0)  # the service thread's own
        self._closed = False
        self.stuck = 0
        """Slots held by handlers that timed out and have not come back."""

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Hold the lock, and then call a runner if jobs wait for one."""
        with self._lock:
            yield
            wanted = self._wanted()
        if wanted is not None:
            self._call(self, wanted)

    def feed(self, runs: list[Run]) -> list[Run]:
        """Queue these jobs for a slot. Returns the jobs if there are no slots or the slots are closed, else an empty list."""
        with self._changing():
            if self._closed or not self.limit:
                return runs
            self._waiting.extend(runs)
            self._gathering.per_slot = min(self._gathering.per_slot, 1.0)
        return []

    def gather(self, runs: list[Run]) -> list[Run]:
        """`feed` for jobs that may belong to batch tasks."""
        with self._changing():
            if self._closed or not self.limit:
                return runs
            self._waiting.extend(self._gathering.add(runs))
        return []

    def start_gathered(self, queue: str | None = None, *, due_by: float = inf) -> None:
        """Start batches that wait for more jobs: see `Gathering.start`."""
        if self._gathering:
            with self._changing():
                self._waiting.extend(self._gathering.start(queue, due_by=due_by))

    def begin_again(self, batches: list[BatchRun]) -> list[Run]:
        """Queue these batches, which run again, before all others. Returns their runs if there are no slots or the slots are closed, else an empty list."""
        with self._changing():
            if self._closed or not self.limit:
                return runs_of(batches)
            for batch in reversed(batches):
                batch.arrived = monotonic()
                self._waiting.appendleft(batch)
        return []

    def next(self, kind: Kind | None, ended: Run | None = None) -> Run | None:
        """The next job for a runner of this kind, which has just come or whose last job has `ended`; None: there is no job for it.

        A runner that takes no other job passes None as `kind`.
        """
        run: Run | None = None
        wanted: Kind | None = None
        with self._lock:
            if ended is None:
                self._called = None
            else:
                self.running -= 1
                self.ended += 1
                if ended.abandoned:
                    self._keep(ended)
                if type(ended) is BatchRun:
                    self._ended_along += ended.along
            waiting = self._waiting
            if waiting and self.running < self._open:
                if waiting[0].kind is kind:
                    run = waiting.popleft()
                    self.running += 1
                    if type(run) is BatchRun:
                        self._gathering.taken(run)
                        self._along += run.begin()
                if self._called is None:
                    wanted = self._wanted()
        if wanted is not None:
            self._call(self, wanted)
        return run

    def _wanted(self) -> Kind | None:
        """The kind of runner to call now, if any. From here on that runner counts as called."""
        if self._called is not None or not self._waiting or self.running >= self._open:
            return None
        self._called = monotonic()
        return self._waiting[0].kind

    def not_coming(self) -> None:
        """Note that the called runner will not come; the jobs wait until another is called."""
        with self._lock:
            self._called = None

    def abandon(self, run: Run) -> None:
        """Note that a handler has timed out and cannot be stopped; its slot stays taken until it comes back."""
        with self._lock:
            run.abandoned = True
            self.stuck += 1

    def keep(self, run: Run) -> None:
        """Undo `abandon`, because the run has ended after all."""
        with self._lock:
            self._keep(run)

    def _keep(self, run: Run) -> None:
        if run.abandoned:
            run.abandoned = False
            self.stuck -= 1

    def free(self) -> int:
        """Jobs to claim now: for the free slots, and some ahead if jobs end faster than a claim takes."""
        with self._lock:
            if self._closed or not self._open or not self.hungry:
                return 0
            free = max(self.limit + self.ahead - self.running - len(self._waiting), 0)
            if self.per_slot == 1.0:  # nearly always
                return free
            return min(max(int((free - self._gathering.slots) * self.per_slot), 0), _MOST_JOBS)

    @property
    def per_slot(self) -> float:
        """The mean number of jobs per slot, measured on the last jobs; more than 1 with batch tasks."""
        return self._gathering.per_slot

    @property
    def gathers(self) -> bool:
        """Whether a batch still takes jobs."""
        return bool(self._gathering)

    @property
    def next_at(self) -> float:
        """When the next batch starts that waits for more jobs; infinite if none waits."""
        with self._lock:
            return self._gathering.next_at

    @property
    def ahead(self) -> int:
        """Jobs to claim now beyond the number of slots."""
        return int(self._buffer)

    @property
    def hungry(self) -> bool:
        """Whether the waiting jobs may soon be too few. An earlier claim would bring few jobs, and cost as much.

        No jobs are wanted while a called runner does not come, because a handler blocks the event loop.
        """
        if (called := self._called) is not None and monotonic() - called > _BLOCKED:
            return False
        return len(self._waiting) <= self._buffer / 2

    def measure(self) -> None:
        """Adapt the buffer to how fast jobs end. On the service thread."""
        now, ended = monotonic(), self.ended
        before, count_before = self._measured
        if now - before >= 0.05:
            rate = (ended - count_before) / (now - before)
            self._buffer = min(self._most, max(rate * _AHEAD, self._buffer / 2))
            self._measured = (now, ended)

    def stale(self, seconds: float) -> list[Run]:
        """Remove and return the jobs that have waited longer than `seconds` for a slot."""
        before = monotonic() - seconds
        taken: list[Run] = []
        with self._lock:
            while self._waiting and self._waiting[0].arrived <= before:
                taken.append(self._waiting.popleft())
            if taken:
                # The buffer was sized for faster jobs. Left alone, as many would be claimed ahead again, then half of that, ...
                self._buffer = 0.0
            return self._gathering.take(taken)

    def resize(self, limit: int) -> list[Run]:
        """Have this many slots. Running jobs go on. Returns the waiting jobs for which there is no room any more, the newest first."""
        with self._changing():
            self.limit = limit
            self._open = 0 if self.paused else limit
            room = max(limit + self.ahead - self.running, 0) if limit else 0
            beyond = [self._waiting.pop() for _ in range(len(self._waiting) - room)]
            return self._gathering.take(beyond) + ([] if limit else self._gathering.clear())

    def pause(self) -> None:
        """Start and claim no more jobs for now. Jobs that wait too long go back, as they do behind slow handlers."""
        with self._lock:
            self.paused, self._open = True, 0

    def resume(self) -> None:
        """Start jobs again."""
        with self._changing():
            self.paused, self._open = False, self.limit

    def close(self) -> list[Run]:
        """Start no more jobs. Returns those that were waiting."""
        with self._lock:
            self._closed = True
            left, self._waiting = self._waiting, deque()
            return runs_of(left) + self._gathering.clear()

    @property
    def started(self) -> int:
        """Jobs that got a slot, so far."""
        with self._lock:
            return self.ended + self.running + self._along

    @property
    def jobs_ended(self) -> int:
        """Jobs whose handlers have come back, so far."""
        with self._lock:
            return self.ended + self._ended_along

    @property
    def waiting(self) -> int:
        """Jobs claimed and not started; those of a batch count as one."""
        if not self._gathering:
            return len(self._waiting)
        with self._lock:
            return len(self._waiting) + ceil(self._gathering.slots)
