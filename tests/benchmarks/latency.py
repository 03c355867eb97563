"""Latency on an idle worker: from the return of the producer's commit to the start of the handler, one job each 20 ms.

Producer, worker and the listener of the reference are processes of their own; the clock is the machine's monotonic one,
which they share.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue
from sa_jobqueue.bench.crew import processes

from .plain import make_tables
from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench, open_engine
from .tasks import note_start
from .workers import serve

#: The first ones make connections and caches; they do not count.
WARM_UP = 20


def latency(bench: Bench) -> Iterator[Figure]:
    """p50 and p99 against a process that only LISTENs."""
    jobs = 50 if bench.small else 300
    found = {"p50": [], "p99": []}  # type: dict[str, list[tuple[float, float]]]
    for _ in range(bench.repeat):
        ((mine, other),) = interleaved_once(bench, jobs)
        for number, name in ((49, "p50"), (98, "p99")):
            found[name].append((statistics.quantiles(mine, n=100)[number], statistics.quantiles(other, n=100)[number]))
    for (name, pairs), most in zip(found.items(), (1.5, 3.0), strict=True):
        yield compared(f"commit to start, idle worker, {name}", pairs, "ms", "LISTEN/NOTIFY", at_most=most)


def interleaved_once(bench: Bench, jobs: int) -> list[tuple[list[float], list[float]]]:
    """The waits of both, in milliseconds."""
    return interleaved(1, lambda: of_ours(bench, jobs), lambda: of_notify(bench, jobs))


def of_ours(bench: Bench, jobs: int) -> list[float]:
    bench.empty()
    bench.settle()
    with processes(1, serve, bench.address, {"default": 10}) as worker:
        worker.go()
        bench.wait_for(f"SELECT count(*) FROM {SCHEMA}.worker")
        with processes(1, produce, bench.address, jobs) as producer:
            producer.go()
        bench.wait_for(f"SELECT NOT EXISTS (SELECT FROM {SCHEMA}.job WHERE status IN ('queued', 'running'))")
        worker.stop()
    return _waits(producer.results[0], worker.results[0])


def of_notify(bench: Bench, jobs: int) -> list[float]:
    make_tables(bench)
    with processes(1, listen, bench.address, jobs) as listener:
        listener.go()
        with processes(1, notify, bench.address, jobs) as producer:
            producer.go()
    return _waits(producer.results[0], listener.results[0])


def _waits(sent: dict[int, float], started: dict[int, float]) -> list[float]:
    assert set(sent) == set(started), "not each job that was sent has started"
    return [max(started[n] - at, 0.0) * 1000 for n, at in sent.items() if n >= WARM_UP]


def produce(ready: Callable[[], Any], address: str, jobs: int) -> dict[int, float]:
    """Enqueue; when each commit returned, by `n`."""
    sent: dict[int, float] = {}
    engine = open_engine(address)
    with Session(engine) as session:
        session.connection()
        session.rollback()
        ready()
        for n in range(jobs + WARM_UP):
            time.sleep(0.02)
            session.add(enqueue(note_start, n))
            session.commit()
            sent[n] = time.perf_counter()
    engine.dispose()
    return sent


def notify(ready: Callable[[], Any], address: str, jobs: int) -> dict[int, float]:
    """INSERT a row and NOTIFY; when each commit returned."""
    sent: dict[int, float] = {}
    with psycopg.connect(_conninfo(address)) as connection:
        ready()
        for n in range(jobs + WARM_UP):
            time.sleep(0.02)
            connection.execute(f"INSERT INTO {SCHEMA}.plain (task) VALUES ('nothing')")
            connection.execute("SELECT pg_notify('sa_jobqueue_bench', %s)", [str(n)])
            connection.commit()
            sent[n] = time.perf_counter()
    return sent


def listen(ready: Callable[[], Any], address: str, jobs: int) -> dict[int, float]:
    """When each NOTIFY came."""
    came: dict[int, float] = {}
    with psycopg.connect(_conninfo(address), autocommit=True) as connection:
        connection.execute("LISTEN sa_jobqueue_bench")
        ready()
        for one in connection.notifies(timeout=60, stop_after=jobs + WARM_UP):
            came[int(one.payload)] = time.perf_counter()
    return came


def _conninfo(address: str) -> str:
    return address.replace("postgresql+psycopg://", "postgresql://", 1)
