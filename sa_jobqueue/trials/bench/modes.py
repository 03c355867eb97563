"""The three measurements: draining a full queue, a steady rate, and enqueueing."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ...enqueueing.jobs import enqueue, enqueue_many
from ...errors import JobQueueError
from ...models import Job
from ...sql.readings.depths import list_workers
from ...tasks.decorator import task
from ...tasks.registry import Registry
from ...tasks.tasks import Task
from ...worker.process.inside import tune_gc
from ...worker.worker import Worker
from .processes import (
    SCHEMA,
    Place,
    Processes,
    Ready,
    Tell,
    live_numbers,
    open_engine,
    place,
    processes,
    seconds_to_drain,
)

REGISTRY = Registry()

#: When each job began, by its number, on the monotonic clock that all processes of the machine share.
STARTED: dict[int, float] = {}


@task(registry=REGISTRY, name="bench.nothing")
async def nothing(n: int, payload: str) -> None:
    """Do nothing."""


@task(registry=REGISTRY, name="bench.nothing_sync")
def nothing_sync(n: int, payload: str) -> None:
    """Do nothing, on a thread."""


@task(registry=REGISTRY, name="bench.note")
async def note(n: int, payload: str) -> None:
    """Note when it began."""
    STARTED[n] = time.perf_counter()


@task(registry=REGISTRY, name="bench.note_sync")
def note_sync(n: int, payload: str) -> None:
    """Note when it began, on a thread."""
    STARTED[n] = time.perf_counter()


# ---- What runs in the processes of a measurement: workers, and producers of three kinds.


def work(ready: Ready, url: str, slots: int) -> int:
    """A worker until nothing is due; how many jobs it completed."""
    worker = connected(_worker(url, slots))
    ready()
    worker.run(until_idle=True)
    return worker.counts["completed"]


def serve(ready: Ready, url: str, slots: int) -> dict[int, float]:
    """A worker until it is told to stop; when each job began."""
    run_until_told(connected(_worker(url, slots)), ready)
    return dict(STARTED)


def _worker(url: str, slots: int) -> Worker:
    return Worker(url, {"default": slots}, registry=REGISTRY, schema=SCHEMA)


def connected(worker: Worker) -> Worker:
    """Let a worker connect, so that this does not count, and tune the garbage collector as the command `work` does."""
    with worker.engine.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
    tune_gc()
    return worker


def run_until_told(worker: Worker, ready: Ready, *, now: bool = False) -> None:
    """Run a worker until its process is told to stop. `now`: without waiting for running jobs."""
    pipe = ready()

    def wait_for_stop() -> None:
        with suppress(EOFError):
            pipe.recv()
        worker.stop(now=now)

    threading.Thread(target=wait_for_stop, daemon=True).start()
    worker.run()


@dataclass(frozen=True, slots=True)
class Stream:
    """Jobs that come at a steady rate."""

    rate: float
    seconds: float
    use_async: bool
    payload: str


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients that enqueue one job after another for `seconds`; `shares`: how many of them each process has."""

    shares: tuple[int, ...]
    seconds: float
    payload: str


def produce(ready: Ready, url: str, stream: Stream) -> list[tuple[int, float]]:
    """Enqueue at a steady rate, each job with a commit of its own while the rate allows it.

    A producer that comes too late puts all that are due into one transaction. Returns for each job its number and when
    its commit had returned.
    """
    wanted: Task[Any, Any, Any] = note if stream.use_async else note_sync
    sent: list[tuple[int, float]] = []
    with _session(url) as session:
        ready()
        begun = time.perf_counter()
        for due in _in_time(begun, stream.rate, stream.seconds):
            session.add_all([enqueue(wanted, n, stream.payload) for n in due])
            session.commit()
            now = time.perf_counter()
            sent += [(n, now) for n in due]
    return sent


def _in_time(begun: float, rate: float, seconds: float) -> Iterator[range]:
    """The numbers of the jobs that are due, as soon as there are some."""
    done, most = 0, round(rate * seconds)
    while done < most:
        time.sleep(max(begun + done / rate - time.perf_counter(), 0.0))
        due = min(max(int((time.perf_counter() - begun) * rate), done + 1), most)
        yield range(done, due)
        done = due


def clients(ready: Ready, process: int, url: str, plan: Clients) -> int:
    """This process's share of clients, each a thread that adds and commits one job after another; how many jobs."""
    threads = plan.shares[process]
    until = 0.0
    counts = [0] * threads
    failures: list[BaseException] = []
    together = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        try:
            with _session(url) as session:
                together.wait()
                together.wait()
                while time.perf_counter() < until:
                    session.add(enqueue(nothing, number, plan.payload))
                    session.commit()
                    counts[number] += 1
        except BaseException as error:
            failures.append(error)
            together.abort()

    started = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in started:
        thread.start()
    with suppress(threading.BrokenBarrierError):
        together.wait()
        ready()
        until = time.perf_counter() + plan.seconds
        together.wait()
    for thread in started:
        thread.join()
    for error in failures:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return sum(counts)


@contextmanager
def _session(url: str) -> Generator[Session]:
    """A session whose connection is there."""
    engine = open_engine(url, pool_size=1)
    with Session(engine) as session:
        session.connection()
        session.rollback()
        yield session
    engine.dispose()


#: Jobs in one statement, where many are made at once.
_PAGE = 10_000
#: After the last job of a steady rate was sent, seconds for the workers to finish.
_LAST = 60.0


@dataclass(frozen=True, slots=True)
class Drained:
    """How fast a full queue was emptied."""

    jobs: int
    seconds: float
    jobs_per_second: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Steady:
    """How long jobs took when they came at a steady rate."""

    jobs: int
    seconds: float
    jobs_per_second: float
    enqueue_to_start: Latency
    start_to_completed: Latency
    enqueue_to_completed: Latency


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Jobs per second."""

    one_client: float
    bulk: float
    clients: int
    concurrent: float


def drain(
    url: sa.URL, *, jobs: int, processes_: int, slots: int, use_async: bool, payload: str, tell: Tell | None = None
) -> Drained:
    """Fill the queue, let the worker processes empty it, and time it by the database's clock."""
    with place(url) as here:
        _fill(here, jobs, nothing if use_async else nothing_sync, payload)
        here.settle()
        with here.looking() as connection, processes(processes_, work, here.address, slots) as group:
            seconds = seconds_to_drain(connection, group, tell=tell)
        _check(here, jobs)
    return Drained(jobs, seconds, jobs / seconds)


def _fill(here: Place, jobs: int, task: object, payload: str) -> None:
    with Session(here.engine) as session:
        for page in range(0, jobs, _PAGE):
            calls = [task.call(n, payload) for n in range(page, min(page + _PAGE, jobs))]  # type: ignore[attr-defined]
            session.execute(enqueue_many(calls))
            session.commit()


def _check(here: Place, jobs: int) -> None:
    """Check that all the jobs that were timed are completed."""
    with Session(here.engine) as session:
        completed = session.scalar(sa.select(sa.func.count()).where(Job.finished_at.is_not(None)))
    if completed != jobs:
        raise JobQueueError(f"{completed} of {jobs} jobs are completed: the figures would be wrong")


def steady(
    url: sa.URL, *, rate: float, seconds: float, processes_: int, slots: int, use_async: bool, payload: str,
    tell: Tell | None = None,
) -> Steady:  # fmt: skip
    """Enqueue at a fixed rate while the worker processes run, and see when each job starts and is completed."""
    with (
        place(url) as here,
        here.looking() as connection,
        processes(processes_, serve, here.address, slots) as workers,
    ):
        workers.go()
        _wait_for_workers(connection, workers, processes_)
        with processes(1, produce, here.address, Stream(rate, seconds, use_async, payload)) as producer:
            seen = _Seen(connection, max(round(rate * seconds), 1), tell)
            producer.go()
            while not producer.ended:
                seen.look()
                workers.check()
        sent: dict[int, float] = dict(producer.results[0])
        until = time.monotonic() + _LAST
        seen.look()  # at least one poll that began after the last commit
        while not seen.all_done:
            seen.look()
            workers.check()
            if time.monotonic() > until:
                raise JobQueueError(
                    f"the workers were not done {_LAST:g} s after the last job: this rate is too much for them; give a "
                    "lower --rate, or more --processes"
                )
        _check(here, len(sent))
        workers.stop()
    began = {n: at for result in workers.results for n, at in result.items()}
    done = seen.completed_at(sent)
    span = max(done.values()) - min(sent.values())
    return Steady(
        len(sent),
        span,
        len(sent) / max(seconds, max(sent.values()) - min(sent.values())),
        _latency([began[n] - at for n, at in sent.items()]),
        _latency([done[n] - at for n, at in began.items()]),
        _latency([done[n] - at for n, at in sent.items()]),
    )


def _wait_for_workers(connection: sa.Connection, workers: Processes, size: int) -> None:
    until = time.monotonic() + _LAST
    while len(connection.execute(list_workers()).all()) < size:
        workers.check()
        if time.monotonic() > until:
            raise JobQueueError(f"the workers did not start within {_LAST:g} s")
        time.sleep(0.02)


class _Seen:
    """The times at which a connection that polls every few milliseconds first saw that each job had ended.

    Only few jobs are live, and an index finds them, however many jobs are done.
    """

    def __init__(self, connection: sa.Connection, jobs: int, tell: Tell | None) -> None:
        self._connection, self._jobs, self._tell = connection, jobs, tell
        self._looks: list[tuple[float, set[int], float]] = []
        self._told_at = 0.0
        self._before: set[int] = set()
        self._highest = -1

    def look(self) -> None:
        """Poll once, and pause."""
        before = time.perf_counter()
        live = live_numbers(self._connection)
        after = time.perf_counter()
        self._looks.append((before, live, after))
        self._highest = max(self._highest, *live, -1)
        if self._tell is not None and after - self._told_at >= 0.25:
            self._told_at = after
            self._tell(max(self._highest + 1 - len(live), 0), self._jobs)
        time.sleep(max(0.003, 4 * (after - before)))  # at most a fifth of its time is spent on this

    @property
    def all_done(self) -> bool:
        return bool(self._looks) and not self._looks[-1][1]

    def completed_at(self, sent: dict[int, float]) -> dict[int, float]:
        """For each job the first poll, begun after its commit, that did not find it."""
        done: dict[int, float] = {}
        waiting = sorted(sent, key=lambda n: sent[n], reverse=True)
        open_: set[int] = set()
        for before, live, after in self._looks:
            while waiting and sent[waiting[-1]] <= before:
                open_.add(waiting.pop())
            for n in open_ - live:
                done[n] = after
            open_ &= live
        return done


def _latency(seconds: Sequence[float]) -> Latency:
    times = sorted(max(wait, 0.0) * 1000 for wait in seconds)
    cuts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return Latency(cuts[49], cuts[94], cuts[98], times[-1])


def enqueueing(
    url: sa.URL, *, jobs: int, seconds: float, concurrency: int, payload: str, tell: Tell | None = None
) -> Enqueued:
    """Three ways to enqueue jobs: one client in a loop, all in bulk, and many clients in a loop."""
    figures: list[float] = []
    clients_of = partial(_clients, seconds=seconds, payload=payload)
    with place(url) as here:
        for measure in (
            partial(clients_of, here, 1),
            partial(_bulk, here, jobs, payload),
            partial(clients_of, here, concurrency),
        ):
            if tell is not None:
                tell(len(figures), 3)
            figures.append(measure())
    one, bulk, many = figures
    return Enqueued(one, bulk, concurrency, many)


def _clients(here: Place, size: int, seconds: float, payload: str) -> float:
    """Jobs per second of `size` clients, shared out to one process for each processor."""
    count = min(size, os.cpu_count() or 1)
    shares = tuple(size // count + (number < size % count) for number in range(count))
    with processes(count, clients, here.address, Clients(shares, seconds, payload), numbered=True) as group:
        group.go()
    made: int = sum(group.results)
    return made / seconds


def _bulk(here: Place, jobs: int, payload: str) -> float:
    with Session(here.engine) as session:
        session.connection()
        begun = time.perf_counter()
        for page in range(0, jobs, _PAGE):
            session.execute(enqueue_many([nothing.call(n, payload) for n in range(page, min(page + _PAGE, jobs))]))
        session.commit()
        return jobs / (time.perf_counter() - begun)
