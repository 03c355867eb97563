"""Schedules that are all due at one moment: until each has its job, and until the jobs have run.

The reference are plain jobs that one statement enqueues at that moment. One worker serves both. Times are the database's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from sa_jobqueue.trials.bench.processes import processes

from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench
from .workers import SLOTS, serve

#: So far away, at the beginning, is the moment at which all are due.
_SOON = "interval '1.5 s'"


def schedules(bench: Bench) -> Iterator[Figure]:
    """10,000 of them, each with a job."""
    number = 500 if bench.small else 10_000
    until_enqueued: list[float] = []
    bench.empty()
    bench.settle()
    with processes(1, serve, bench.address, {"default": SLOTS}) as worker:
        worker.go()
        bench.wait_for(f"SELECT count(*) FROM {SCHEMA}.worker")
        pairs = interleaved(
            bench.repeat, partial(_ticks, bench, number, until_enqueued), partial(_jobs_at_once, bench, number)
        )
        worker.stop()
    # The target is said for 10,000.
    yield Figure(
        f"{number:,} schedules due at once, until all are enqueued", statistics.median(until_enqueued), "s", at_most=2.0
    )
    yield compared(f"{number:,} schedules due at once : plain jobs, until all have run", pairs, "jobs/s", "plain jobs")


def _ticks(bench: Bench, number: int, until_enqueued: list[float]) -> float:
    """Jobs per second from the moment on. How long it took until all were enqueued is added to the list."""
    bench.empty()
    moment = bench.execute(
        f"INSERT INTO {SCHEMA}.schedule (name, expression, next_at, due_at, task, args) "
        f"SELECT 'schedule ' || n, 'every 3600 s', now() + {_SOON}, now() + {_SOON}, 'nothing', jsonb_build_object('n', n) "
        "FROM generate_series(1, :number) AS n RETURNING extract(epoch FROM next_at)::float8",
        number=number,
    )  # fmt: skip
    bench.wait_for(f"SELECT count(*) >= {number} FROM {SCHEMA}.job")
    until_enqueued.append(bench.execute("SELECT extract(epoch FROM clock_timestamp())::float8") - moment)
    rate = _rate_since(bench, number, moment)
    assert bench.count("tick_at IS NOT NULL") == number, "each schedule has one job"
    bench.execute(f"TRUNCATE {SCHEMA}.schedule")
    return rate


def _jobs_at_once(bench: Bench, number: int) -> float:
    bench.empty()
    bench.fill(number)
    return _rate_since(
        bench, number, bench.execute(f"SELECT extract(epoch FROM min(run_at))::float8 FROM {SCHEMA}.job")
    )


def _rate_since(bench: Bench, number: int, moment: float) -> float:
    bench.wait_for(f"SELECT count(*) = {number} FROM {SCHEMA}.job WHERE status = 'completed'")
    return number / (bench.execute(f"SELECT extract(epoch FROM max(finished_at))::float8 FROM {SCHEMA}.job") - moment)
