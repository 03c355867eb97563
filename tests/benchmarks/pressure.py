"""What the pressure governor costs a worker that holds nothing back."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

from sa_jobqueue import WorkerSettings
from sa_jobqueue.sql.workers import read_pressure
from sa_jobqueue.worker.connections.service import Connector

from .drain import rate_of_ours
from .report import Figure, compared, interleaved
from .schema import Bench
from .workers import work

_NEVER_PASSED = WorkerSettings(
    max_snapshot_age=604_800, max_lock_waits=100_000, max_replication_lag=604_800, max_active_connections=100_000
)


def governor(bench: Bench) -> Iterator[Figure]:
    """Jobs that do nothing with all thresholds set against none, both ours; and one reading, of which there is one in 5 seconds."""
    jobs = 2_000 if bench.small else 60_000
    pairs = interleaved(
        bench.repeat,
        partial(rate_of_ours, bench, jobs, "nothing", worker=_governed),
        partial(rate_of_ours, bench, jobs, "nothing"),
    )
    yield compared("drain, pressure thresholds set : none", pairs, "jobs/s", "none", at_least=0.9)
    yield Figure("one reading of the pressure, p50", statistics.median(_readings(bench)) * 1_000, "ms", at_most=5)


def _governed(ready: Callable[[], Any], address: str, queues: dict[str, int]) -> dict[str, int]:
    return work(ready, address, queues, settings=_NEVER_PASSED)


def _readings(bench: Bench) -> Iterator[float]:
    """Seconds of each, on a connection as maintenance has it."""
    with Connector(bench.engine, lease=60.0).connect() as connection:
        for _ in range(20 if bench.small else 200):
            began = perf_counter()
            with connection.begin():
                read_pressure(connection)
            yield perf_counter() - began
