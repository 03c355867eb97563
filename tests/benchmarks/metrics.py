"""What metrics cost: a worker that is asked for them all the time, and one answer."""

from __future__ import annotations

import statistics
import threading
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter, process_time
from typing import Any

from prometheus_client import generate_latest

from sa_jobqueue import Worker
from sa_jobqueue.metrics import QueueCollector
from sa_jobqueue.metrics.endpoint import Endpoint, SupervisorProbes, registry_of
from sa_jobqueue.metrics.sums import Receiver, Sender, Snapshot, Totals, TotalsCollector, read_snapshot
from sa_jobqueue.rules.tally import BUCKETS, TaskTally
from sa_jobqueue.trials.bench.processes import processes
from sa_jobqueue.worker.tally import QueueState, WorkerState

from .drain import seconds_to_drain
from .report import Figure, compared, interleaved
from .schema import Bench
from .workers import SLOTS, work

#: Tasks of a large application, with a histogram each.
_TASKS = 100


def metrics(bench: Bench) -> Iterator[Figure]:
    """Jobs that do nothing, with metrics that are sent and scraped each second against none, both ours; and one answer of each kind."""
    jobs = 2_000 if bench.small else 60_000
    pairs = interleaved(
        bench.repeat, partial(_cpu_of_a_job, bench, jobs, _cpu_watched), partial(_cpu_of_a_job, bench, jobs, _cpu)
    )
    yield compared("CPU of a job, metrics scraped each second : off", pairs, "µs", "off", at_most=1.05)
    times = 20 if bench.small else 200
    snapshot = _snapshot()
    yield Figure(f"metrics: a line for the supervisor, {_TASKS} tasks, p50", _p50(snapshot.to_line, times), "ms")
    registry = registry_of(TotalsCollector(lambda: Totals.of_one(snapshot)))
    yield Figure(
        f"metrics: a scrape of a worker, {_TASKS} tasks, p50", _p50(lambda: generate_latest(registry), times), "ms"
    )
    bench.prepare(jobs, task="nothing")
    database = registry_of(QueueCollector(bench.engine, keep=0.0, findings=False))
    looks = _p50(lambda: generate_latest(database), times // 4)
    yield Figure("metrics: a scrape of the database, p50", looks, "ms", at_most=200)


def _cpu_of_a_job(bench: Bench, jobs: int, worker: Callable[..., float]) -> float:
    """Microseconds of the worker's process: what else runs on the machine moves them less than it moves a rate."""
    bench.prepare(jobs, task="nothing", queues=["default"])
    with processes(1, worker, bench.address, {"default": SLOTS}) as group:
        seconds_to_drain(bench, group)
    return float(group.results[0]) / jobs * 1e6


def _cpu(
    ready: Callable[[], Any], address: str, queues: dict[str, int], beside: Callable[[Worker], None] | None = None
) -> float:
    """Seconds of CPU from the start of the worker to its end."""
    began = 0.0

    def begin() -> None:
        nonlocal began
        ready()
        began = process_time()

    work(begin, address, queues, beside=beside)
    return process_time() - began


def _cpu_watched(ready: Callable[[], Any], address: str, queues: dict[str, int]) -> float:
    return _cpu(ready, address, queues, _watch)


def _watch(worker: Worker) -> None:
    """Send to a supervisor's end, which is in this process as well, and is scraped from here: more than a worker has to do."""
    receiver = Receiver()
    Sender(receiver.open(1), lambda: read_snapshot(worker)).start()
    endpoint = Endpoint("127.0.0.1", 0)
    endpoint.serve(registry_of(TotalsCollector(receiver.sums.totals)), SupervisorProbes(receiver))

    def scrape() -> None:
        while True:
            with urllib.request.urlopen(endpoint.url, timeout=10) as answer:
                answer.read()
            threading.Event().wait(1.0)

    threading.Thread(target=scrape, daemon=True).start()


def _snapshot() -> Snapshot:
    counts = tuple(range(BUCKETS))
    tallies = tuple(
        TaskTally("default", f"shop.task_{number}", completed=10**6, run_seconds=12.5, runs=counts, waits=counts)
        for number in range(_TASKS)
    )
    queues = {"default": QueueState(100, running=50, waiting=10, stuck=0, paused=False)}
    return Snapshot(tallies, WorkerState(True, queues, {}), lease=60.0)


def _p50(act: Callable[[], object], times: int) -> float:
    """Milliseconds."""

    def timed() -> float:
        began = perf_counter()
        act()
        return (perf_counter() - began) * 1_000

    return statistics.median(timed() for _ in range(times))
