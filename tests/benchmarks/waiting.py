"""Latency of `wait_for`: from the return of the commit that ends a job to the answer, job by job, with nothing else to do.

The reference LISTENs in psycopg, and selects the job's result when it is notified. Processes and clock are as in `latency`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
from sqlalchemy import create_engine

import sa_jobqueue
from sa_jobqueue.trials.bench.processes import processes
from sa_jobqueue.util.urls import database_url

from .latency import WARM_UP, conninfo, waits_in_ms
from .report import Figure, compared
from .schema import SCHEMA, Bench

#: Running jobs, and how one of them is completed.
_JOBS = (
    f"INSERT INTO {SCHEMA}.job (task, status, claims, claim_token, attempt, worker, claimed_at, lease_expires_at) "
    "SELECT 'nothing', 'running', 1, 1, 1, 'bench', now(), now() + interval '1 hour' FROM generate_series(1, :jobs)"
)
_COMPLETE = f"SELECT {SCHEMA}.complete_job(%s, 1, 86400, '{{}}')"
_CHANNEL = "sa_jobqueue_bench"
#: Seconds between two ends: the last one is over, and the processes sleep.
_PAUSE = 0.02


def wait_for(bench: Bench) -> Iterator[Figure]:
    """p50 and p98 against the bare loop."""
    jobs = 50 if bench.small else 200
    rounds = [(_measured(bench, answers, jobs), _measured(bench, hears, jobs)) for _ in range(bench.repeat)]
    for number, name, most in ((49, "p50", 6.0), (97, "p98", 6.0)):
        percentile = partial(_percentile, number)
        pairs = [(percentile(ours), percentile(bare)) for ours, bare in rounds]
        yield compared(f"commit to answer of wait_for, {name}", pairs, "ms", "LISTEN, SELECT", at_most=most)


def _percentile(number: int, waits: list[float]) -> float:
    return statistics.quantiles(waits, n=100)[number]


def _measured(bench: Bench, program: Callable[..., dict[int, float]], jobs: int) -> list[float]:
    bench.empty()
    bench.execute(_JOBS, jobs=jobs + WARM_UP)
    bench.settle()
    with processes(1, program, bench.address) as waiting, processes(1, ends, bench.address, program is hears) as ending:
        waiting.go()
        ending.go()
    return waits_in_ms(ending.results[0], waiting.results[0])


def _ids(connection: psycopg.Connection[Any]) -> list[int]:
    return [id for (id,) in connection.execute(f"SELECT id FROM {SCHEMA}.job ORDER BY id")]


def ends(ready: Callable[[], Any], address: str, notifying: bool) -> dict[int, float]:
    """Complete one job after the other, each when it is awaited; when each commit returned. `notifying`: for the bare loop."""
    ended: dict[int, float] = {}
    with psycopg.connect(conninfo(address), autocommit=True) as connection:
        ids = _ids(connection)
        ready()
        for n, id in enumerate(ids):
            while (
                not notifying
                and not connection.execute(
                    f"SELECT EXISTS (SELECT FROM {SCHEMA}.awaited WHERE job_id = %s)", [id]
                ).fetchone()[0]
            ):  # type: ignore[index]
                time.sleep(0.002)
            time.sleep(_PAUSE)
            with connection.transaction():
                connection.execute(_COMPLETE, [id])
                if notifying:
                    connection.execute("SELECT pg_notify(%s, %s)", [_CHANNEL, str(id)])
            ended[n] = time.perf_counter()
    return ended


def answers(ready: Callable[[], Any], address: str) -> dict[int, float]:
    """When `wait_for` returned for each."""
    came: dict[int, float] = {}
    with psycopg.connect(conninfo(address)) as connection:
        ids = _ids(connection)
    engine = create_engine(database_url(address))
    ready()
    for n, id in enumerate(ids):
        assert sa_jobqueue.wait_for(engine, id, timeout=60).result == {}
        came[n] = time.perf_counter()
    engine.dispose()
    return came


def hears(ready: Callable[[], Any], address: str) -> dict[int, float]:
    """When the bare loop had the result of each."""
    came: dict[int, float] = {}
    with psycopg.connect(conninfo(address), autocommit=True) as connection:
        numbers = {id: n for n, id in enumerate(_ids(connection))}
        connection.execute(f"LISTEN {_CHANNEL}")
        ready()
        while len(came) < len(numbers):
            for one in list(
                connection.notifies(timeout=60, stop_after=1)
            ):  # a list: the generator keeps the connection
                id = int(one.payload)
                connection.execute(f"SELECT status, result FROM {SCHEMA}.job WHERE id = %s", [id]).fetchone()
                came[numbers[id]] = time.perf_counter()
    return came
