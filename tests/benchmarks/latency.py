"""Latency on an idle worker: from the return of the producer's commit to the start of the handler, one job each 20 ms.

Two references: a process that only LISTENs, and so claims nothing, and a bare loop in psycopg that, when it is notified,
claims one job and commits before it starts it, as every queue on PostgreSQL has to. The claim's commit waits for the
disk; the first reference has nothing to wait for. Producer, worker and references are processes of their own; the clock
is the machine's monotonic one, which they share.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue
from sa_jobqueue.trials.bench.processes import processes
from sa_jobqueue.util.urls import database_url

from .plain import make_tables
from .raw import CLAIM
from .report import Figure, compared
from .schema import SCHEMA, Bench, service_connection
from .tasks import note_start
from .workers import serve

#: The first ones make connections and caches; they do not count.
WARM_UP = 20
#: Seconds: the listener may be told before the producer is told that its commit has returned.
_SOONEST = 1e-6


def latency(bench: Bench) -> Iterator[Figure]:
    """p50 and p99 against both references."""
    jobs = 50 if bench.small else 300
    rounds = [
        (of_ours(bench, jobs), of_bare(bench, claims, jobs, claiming=True), of_bare(bench, listens, jobs))
        for _ in range(bench.repeat)
    ]
    for number, name, most in ((49, "p50", 1.5), (98, "p99", 3.0)):
        ours, claiming, listening = zip(*[[_percentile(waits, number) for waits in one] for one in rounds], strict=True)
        title = f"commit to start, idle worker, {name}"
        yield compared(title, zip(ours, claiming, strict=True), "ms", "LISTEN, claim, commit", at_most=most)
        yield compared(title, zip(ours, listening, strict=True), "ms", "LISTEN alone", at_most=most)


def _percentile(waits: list[float], number: int) -> float:
    return statistics.quantiles(waits, n=100)[number]


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
    return waits_in_ms(producer.results[0], worker.results[0])


def of_bare(bench: Bench, worker: Callable[..., dict[int, float]], jobs: int, claiming: bool = False) -> list[float]:
    bench.empty()
    make_tables(bench)
    bench.settle()
    with processes(1, worker, bench.address, jobs) as listener:
        listener.go()
        with processes(1, notify, bench.address, jobs, claiming) as producer:
            producer.go()
    return waits_in_ms(producer.results[0], listener.results[0])


def waits_in_ms(sent: dict[int, float], started: dict[int, float]) -> list[float]:
    """From one time to the other, by number, without the first ones."""
    assert set(sent) == set(started), "not each job that was sent has started"
    return [max(started[n] - at, _SOONEST) * 1000 for n, at in sent.items() if n >= WARM_UP]


def produce(ready: Callable[[], Any], address: str, jobs: int) -> dict[int, float]:
    """Enqueue; when each commit returned, by `n`."""
    sent: dict[int, float] = {}
    engine = create_engine(database_url(address))
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


def notify(ready: Callable[[], Any], address: str, jobs: int, claiming: bool) -> dict[int, float]:
    """INSERT a row and NOTIFY; when each commit returned. `claiming`: the row is a job."""
    sent: dict[int, float] = {}
    insert = f"INSERT INTO {SCHEMA}.plain (task) VALUES ('nothing')"
    with psycopg.connect(conninfo(address)) as connection:
        ready()
        for n in range(jobs + WARM_UP):
            time.sleep(0.02)
            if claiming:
                insert = f"INSERT INTO {SCHEMA}.job (task, args) VALUES ('nothing', '{{\"n\": {n}}}')"
            connection.execute(insert)  # no parameters: as text it is planned each time, on both sides alike
            connection.execute("SELECT pg_notify('sa_jobqueue_bench', %s)", [str(n)])
            connection.commit()
            sent[n] = time.perf_counter()
    return sent


def listens(ready: Callable[[], Any], address: str, jobs: int) -> dict[int, float]:
    """When each NOTIFY came."""
    came: dict[int, float] = {}
    with psycopg.connect(conninfo(address), autocommit=True) as connection:
        connection.execute("LISTEN sa_jobqueue_bench")
        ready()
        for one in connection.notifies(timeout=60, stop_after=jobs + WARM_UP):
            came[int(one.payload)] = time.perf_counter()
    return came


def claims(ready: Callable[[], Any], address: str, jobs: int) -> dict[int, float]:
    """When the claim of each was committed: one job per NOTIFY, on a connection with the worker's settings."""
    came: dict[int, float] = {}
    sqlalchemy_connection, service = service_connection(address)
    with psycopg.connect(conninfo(address), autocommit=True) as connection:
        connection.execute("LISTEN sa_jobqueue_bench")
        ready()
        for _ in connection.notifies(timeout=60, stop_after=jobs + WARM_UP):
            ((_, _, _, args),) = service.execute(CLAIM, {"free": 1, "worker": "raw"}, prepare=True).fetchall()
            service.commit()
            came[json.loads(args)["n"]] = time.perf_counter()
    sqlalchemy_connection.close()
    return came


def conninfo(address: str) -> str:
    """The URL as psycopg takes it."""
    return address.replace("postgresql+psycopg://", "postgresql://", 1)
