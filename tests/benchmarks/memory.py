"""Memory of a worker that drains 1,000,000 jobs: its size, and whether it grows."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from sa_jobqueue.trials.bench.processes import processes

from .drain import seconds_to_drain
from .idle import MIB
from .report import Figure
from .schema import Bench
from .workers import SLOTS, work


def memory(bench: Bench) -> Iterator[Figure]:
    """Resident memory ten times a second: the most, and the last quarter of the time against the second."""
    jobs = 5_000 if bench.small else 1_000_000
    bench.prepare(jobs)
    with processes(1, work, bench.address, {"default": SLOTS}) as group, _sampling(group.pids[0]) as samples:
        seconds_to_drain(bench, group)
    quarter = max(len(samples) // 4, 1)
    first, last = statistics.median(samples[quarter : 2 * quarter] or samples), statistics.median(samples[-quarter:])
    yield Figure(f"resident memory, draining {jobs:,} jobs, the most", max(samples), "MiB", at_most=150)
    yield Figure(
        "the same, last quarter : second quarter", last, "MiB", first, "second quarter", last / first, at_most=1.05
    )


@contextmanager
def _sampling(pid: int) -> Iterator[list[float]]:
    process, over = psutil.Process(pid), threading.Event()
    samples = [process.memory_info().rss / MIB]

    def sample() -> None:
        while not over.wait(0.1):
            samples.append(process.memory_info().rss / MIB)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
