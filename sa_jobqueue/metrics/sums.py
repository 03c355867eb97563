"""The sums over all worker processes of a supervisor, including processes that have ended.

What a process has counted stays in the sums when it ends, so no counter goes back. Its gauges go with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from pydantic import TypeAdapter

from ..rules.lifecycle import COUNTED, OUTCOMES, Event
from ..rules.tally import BUCKETS, TaskTally
from ..sql.workers import serves
from ..util.log import get_logger
from ..worker.process.signals import start_deaf
from ..worker.tally import WorkerState
from ..worker.worker import Worker
from . import names
from .parts import Families

#: Seconds without a move after which a worker whose lease is shorter counts as stuck.
_SHORTEST_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker's tally since its process began, and its state. `lease`: its setting."""

    tallies: tuple[TaskTally, ...]
    state: WorkerState
    lease: float

    def is_stuck(self, unheard: float = 0.0) -> bool:
        """Whether its threads are stuck; `unheard`: seconds since its last report."""
        late = self.state.late if self.state.serving and not self.state.leaving else 0.0
        return late + unheard > max(self.lease, _SHORTEST_PATIENCE)

    @property
    def not_ready(self) -> str | None:
        """Why it cannot take jobs just now; None: it can."""
        if not self.state.serving:
            return "it has not begun"
        if self.state.leaving:
            return "it is leaving"
        return "the database does not answer" if self.state.away else None

    def to_line(self) -> bytes:
        """One line of JSON."""
        return _ADAPTER.dump_json(self) + b"\n"

    @staticmethod
    def from_line(line: bytes) -> Snapshot:
        """What `to_line` made. Raises ValueError."""
        return _ADAPTER.validate_json(line)


_ADAPTER = TypeAdapter(Snapshot)


def read_snapshot(worker: Worker) -> Snapshot:
    """Read it. The tasks of the worker's queues are there from the beginning, with zeros, so that a rate sees their first jobs."""
    known = {task.name: task.queue for task in worker.registry if serves(worker.queues, task.queue)}
    return Snapshot(tuple(_with_zeros(worker.tally(), known.items())), worker.state(), worker.settings.lease)


def _with_zeros(tallies: Iterable[TaskTally], known: Iterable[tuple[str, str]]) -> list[TaskTally]:
    counted = {tally.key: tally for tally in tallies}
    for task, queue in known:
        counted.setdefault((queue, task), TaskTally(queue, task))
    return [counted[key] for key in sorted(counted)]


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
        return cls({tally.key: tally for tally in snapshot.tallies}, state.claimed, state.claims, state.claim_seconds)

    def plus(self, other: Counters) -> Counters:
        """Both together."""
        tallies = dict(self.tallies)
        for key, tally in other.tallies.items():
            tallies[key] = tallies[key].plus(tally) if key in tallies else tally
        claims = tuple(a + b for a, b in zip(self.claims, other.claims, strict=True))
        return Counters(tallies, self.claimed + other.claimed, claims, self.claim_seconds + other.claim_seconds)


@dataclass(frozen=True, slots=True)
class Heard:
    """The last report of a process, and its time by `monotonic()`."""

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
        """Replace the last report of a process."""
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
        """The last reports of live processes, by their numbers."""
        with self._lock:
            return {process[0]: heard for process, heard in sorted(self._heard.items()) if process not in self._ended}

    def totals(self) -> Totals:
        """All of it."""
        with self._lock:
            counters = _sum([self._past, *(Counters.of(heard.snapshot) for heard in self._heard.values())])
        return Totals(counters, {number: heard.snapshot.state for number, heard in self.live().items()})


def _sum(all_counters: Iterable[Counters]) -> Counters:
    total = Counters()
    for counters in all_counters:
        total = total.plus(counters)
    return total


# ---- The metrics of worker processes, made from plain numbers when Prometheus asks. A job costs nothing here.

#: How attempts ended: a rescue does not count as an end here, and has a metric of its own.
_OUTCOMES = tuple(name for name in COUNTED if name != OUTCOMES[Event.RESCUE])


class TotalsCollector(Collector):
    """Exposes what `read` returns at each scrape."""

    def __init__(self, read: Callable[[], Totals]) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        """The families, with the values of now."""
        totals, families = self._read(), Families()
        _add_counters(families, totals)
        _add_gauges(families, totals)
        return iter(families)

    def describe(self) -> Iterator[Family]:
        """Nothing: to be registered needs no values."""
        return iter(())


class WorkerCollector(TotalsCollector):
    """The metrics of a worker that runs in this process: `registry.register(WorkerCollector(worker))`."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(lambda: Totals.of_one(read_snapshot(worker)))


def _add_counters(families: Families, totals: Totals) -> None:
    counters = totals.counters
    for (queue, task), tally in sorted(counters.tallies.items()):
        for outcome in _OUTCOMES:
            families.add(names.JOBS, getattr(tally, outcome), queue, task, outcome)
        families.add(names.RESCUED, tally.rescued, queue, task)
        if any(tally.runs):
            families.add_counts(names.RUN_SECONDS, tally.runs, tally.run_seconds, queue, task)
            families.add_counts(names.WAIT_SECONDS, tally.waits, tally.wait_seconds, queue, task)
    families.add(names.CLAIMED, counters.claimed)
    families.add_counts(names.CLAIM_SECONDS, counters.claims, counters.claim_seconds)


def _add_gauges(families: Families, totals: Totals) -> None:
    live = {number: state for number, state in totals.live.items() if state.serving}
    states = live.values()
    for queue in sorted({queue for state in states for queue in state.queues}):
        of_each = [state.queues[queue] for state in states if queue in state.queues]
        families.add(names.SLOTS, sum(state.slots for state in of_each), queue)
        families.add(names.SLOTS_BUSY, sum(state.running for state in of_each), queue)
        families.add(names.SLOTS_STUCK, sum(state.stuck for state in of_each), queue)
        families.add(names.BUFFERED, sum(state.waiting for state in of_each), queue)
    families.add(names.PROCESSES, len(states))
    families.add(names.LISTENING, sum(state.listening for state in states))
    families.add(names.UNWRITTEN, sum(state.unwritten for state in states))
    for number, state in live.items():
        families.add(names.MEMORY, state.memory, str(number))
        families.add(names.LOOP_LAG, state.loop_lag, str(number))
        families.add(names.CLAIM_SHARE, state.share, str(number))


# ---- How worker processes tell their supervisor what they have counted: a line of JSON each second, over a pipe of each.

logger = get_logger(__name__)

#: Seconds between two lines.
_EVERY = 1.0
#: Seconds that the last line may take.
_LAST = 1.0


class Sender:
    """In a worker process: writes what `read` returns to the pipe `end`."""

    def __init__(self, end: int, read: Callable[[], Snapshot]) -> None:
        os.set_inheritable(end, False)  # or a program that a handler starts would keep the pipe open
        self._end, self._read = end, read
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._send, name="sa-jobqueue metrics", daemon=True)

    def start(self) -> None:
        """Begin."""
        with suppress(RuntimeError):  # the host allows no more threads
            start_deaf(self._thread)

    def finish(self) -> None:
        """Write a last line; waits for a second at most."""
        self._finish.set()
        if self._thread.ident is not None:
            self._thread.join(_LAST)

    def _send(self) -> None:
        try:
            with os.fdopen(self._end, "wb", buffering=0) as pipe:
                while True:
                    finishing = self._finish.is_set()
                    line = self._read().to_line()
                    while line:
                        line = line[pipe.write(line) or 0 :]
                    if finishing:
                        return
                    self._finish.wait(_EVERY)
        except OSError:
            logger.debug("the supervisor does not hear the metrics any more")


class Receiver:
    """In the supervisor: hears the pipes, each on a thread of its own, and adds up what comes in `sums`."""

    def __init__(self, *, ended: Callable[[int], None] | None = None) -> None:
        self.sums = Sums()
        self.is_leaving = False
        """Whether no process is started any more. Written by the supervisor's thread, read by any."""
        self._ended = ended
        """Is told the process id of each process that has ended."""
        self._starts: dict[int, int] = {}
        """How often each number was started. Only the supervisor's thread uses it."""

    def open(self, number: int) -> int:
        """A pipe for the process that is started next under this number; its writing end."""
        process = number, self._starts.get(number, 0) + 1
        reading, writing = os.pipe()
        try:
            name = f"sa-jobqueue metrics of {number}"
            start_deaf(threading.Thread(target=self._hear, args=(process, reading), name=name, daemon=True))
        except RuntimeError:
            os.close(reading)
            os.close(writing)
            raise
        self._starts[number] = process[1]
        return writing

    def ended(self, number: int, pid: int) -> None:
        """The process with this number has ended."""
        self.sums.end((number, self._starts[number]))
        if self._ended is not None:
            self._ended(pid)

    def leaving(self) -> None:
        """No process is started any more."""
        self.is_leaving = True

    def _hear(self, process: tuple[int, int], pipe: int) -> None:
        try:
            with os.fdopen(pipe, "rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):  # else it was killed while it wrote
                        self.sums.hear(process, Snapshot.from_line(line))
        except (OSError, ValueError) as error:
            logger.warning("worker process %d says nothing more to the metrics: %s", process[0], error)
        finally:
            self.sums.close(process)
