"""What runs in the processes of a measurement: workers, and producers of three kinds."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_jobqueue.enqueueing.jobs import enqueue
from sa_jobqueue.tasks import Task
from sa_jobqueue.worker.process.gc import tune_gc
from sa_jobqueue.worker.worker import Worker

from .place import SCHEMA, open_engine
from .processes import Ready
from .tasks import REGISTRY, STARTED, note, note_sync, nothing

__all__ = ["Clients", "Stream", "clients", "produce", "serve", "work"]


def work(ready: Ready, url: str, slots: int) -> int:
    """A worker until nothing is due; how many jobs it completed."""
    worker = _connected(url, slots)
    ready()
    worker.run(until_idle=True)
    return worker.counts["completed"]


def serve(ready: Ready, url: str, slots: int) -> dict[int, float]:
    """A worker until it is told to stop; when each job began."""
    worker = _connected(url, slots)
    pipe = ready()

    def wait_for_stop() -> None:
        with suppress(EOFError):
            pipe.recv()
        worker.stop()

    threading.Thread(target=wait_for_stop, daemon=True).start()
    worker.run()
    return dict(STARTED)


def _connected(url: str, slots: int) -> Worker:
    worker = Worker(url, {"default": slots}, registry=REGISTRY, schema=SCHEMA)
    with worker.engine.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
    tune_gc()  # as the command `work` does
    return worker


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
