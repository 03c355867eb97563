"""Three curves of how the queue scales, as JSON: `tests.benchmarks.pictures` draws them for the docs.

    python -m tests.benchmarks.curves --json curves.json            # a few minutes, on the embedded server
    python -m tests.benchmarks.curves --json curves.json --small    # seconds, only to see that it runs

Throughput against worker processes, latency against load, claim time against depth. Nothing is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from sa_jobqueue.embedded import embedded_url
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.trials.bench import modes
from sa_jobqueue.worker.claiming.shortage import ResumePoints

from .drain import rate_of_ours, rate_of_raw
from .peers.results import machine
from .report import interleaved
from .schema import Bench, benchmark_database, service_connection
from .workers import SLOTS

#: Jobs per claim, where claims are timed.
BATCH = 100
_SETTINGS = ("shared_buffers", "synchronous_commit", "fsync", "jit")

Point = dict[str, Any]


def throughput(bench: Bench) -> Iterator[Point]:
    """Jobs per second of 1 to 4 worker processes, and of as many bare loops, in turn; medians."""
    jobs = 1_000 if bench.small else 40_000
    for size in (1, 2) if bench.small else (1, 2, 3, 4):
        pairs = interleaved(
            bench.repeat,
            lambda size=size: rate_of_ours(bench, jobs * size, "nothing", size=size),
            lambda size=size: rate_of_raw(bench, jobs * size, size=size),
        )
        ours, raw = zip(*pairs, strict=True)
        yield {
            "processes": size, "jobs": jobs * size, "jobs_per_second": statistics.median(ours),
            "lowest": min(ours), "highest": max(ours), "raw_jobs_per_second": statistics.median(raw),
        }  # fmt: skip


def latency(bench: Bench) -> Iterator[Point]:
    """Milliseconds from commit to start at rising rates, with one worker; ends where a producer no longer keeps up."""
    rates, seconds = ((50, 100), 1) if bench.small else ((100, 300, 1_000, 2_000, 3_000, 4_500, 6_000), 6)
    for rate in rates:
        came = modes.steady(
            bench.url, rate=rate, seconds=seconds, processes_=1, slots=SLOTS, use_async=True, payload=""
        )  # fmt: skip
        waits = came.enqueue_to_start
        if came.jobs_per_second < 0.9 * rate:
            return
        yield {
            "rate": rate, "jobs": came.jobs, "jobs_per_second": came.jobs_per_second, "p50": waits.p50, "p99": waits.p99
        }  # fmt: skip


def claim(bench: Bench) -> Iterator[Point]:
    """Milliseconds of a claim of `BATCH` jobs, without its commit, at rising numbers of queued jobs."""
    depths = (1_000, 5_000) if bench.small else (1_000, 10_000, 100_000, 1_000_000)
    bench.empty()
    for depth in depths:
        bench.fill(depth - bench.count("status = 'queued'"))
        bench.settle()
        times = _claims(bench, 10 if bench.small else 50)
        yield {
            "queued": depth, "claims": len(times), "batch": BATCH,
            "p50": statistics.median(times), "p90": statistics.quantiles(times, n=10)[8],
        }  # fmt: skip
    bench.empty()


def _claims(bench: Bench, count: int, warm_up: int = 10) -> list[float]:
    """As the worker claims: on a service connection, behind resume points. The first ones are planned; they do not count."""
    connection, _ = service_connection(bench.address)
    resume, times = ResumePoints(), []
    for _ in range(warm_up + count):
        with connection.begin():
            after, began = resume.begin(["default"]), perf_counter()
            jobs = default_store.claim(
                connection, ClaimRequest(worker="curves", queues={"default": BATCH}, lease=60, after=after)
            )
            took = perf_counter() - began
        assert len(jobs) == BATCH
        resume.end(jobs, took)
        times.append(took * 1000)
        bench.fill(BATCH)
    connection.close()
    return times[warm_up:]


CURVES: dict[str, Callable[[Bench], Iterator[Point]]] = {one.__name__: one for one in (throughput, latency, claim)}


def measure(bench: Bench) -> dict[str, Any]:
    """All that the pictures and their captions need."""
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "small": bench.small,
        "machine": machine(),
        "event_loop": "uvloop" if find_spec("uvloop") else "asyncio",
        "postgresql": str(bench.execute("SHOW server_version")),
        "settings": {name: str(bench.execute(f"SHOW {name}")) for name in _SETTINGS},
    }
    for name, curve in CURVES.items():
        result[name] = []
        for point in curve(bench):
            print(name, ", ".join(f"{key} {value:,.4g}" for key, value in point.items()), flush=True)
            result[name].append(point)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the curves are written")
    parser.add_argument("--small", action="store_true", help="seconds, only to see that it runs")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="of each drain (3)")
    parser.add_argument("--database-url", default=os.environ.get("SA_JOBQUEUE_TEST_URL"))
    given = parser.parse_args()
    url = given.database_url or embedded_url()
    with benchmark_database(url, small=given.small, repetitions=given.repetitions) as bench:
        result = measure(bench)
    given.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
