"""Making jobs: one at a time, a thousand, a hundred thousand, and by 32 clients at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import psycopg
from sqlalchemy import Integer, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import Task, Unique, enqueue, enqueue_many, enqueue_select
from sa_jobqueue.trials.bench.processes import processes

from .latency import conninfo
from .plain import make_tables, plain_row
from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench
from .tasks import nothing
from .workers import serve

#: Clients that enqueue at once: processes, and threads in each.
CLIENTS = (4, 8)
#: Slots of the worker that is saturated meanwhile.
HELD = 8


def one_by_one(bench: Bench) -> Iterator[Figure]:
    """`session.add` and commit, one client and 1,000 at a time, against a plain mapped row of the same columns."""
    make_tables(bench)
    for measure, batch, batches, least in (
        ("session.add(enqueue()) + commit, 1 client", 1, 20 if bench.small else 400, 1.1),
        ("session.add_all of 1,000 jobs + commit", 1_000, 1 if bench.small else 5, 1.5),
    ):
        bench.empty()
        ours, plain = partial(enqueue, nothing), plain_row
        for make in (ours, plain):
            added(bench, make, batch, 3)  # connections, and SQLAlchemy's caches
        bench.settle()
        # Short turns: the speed of a commit changes within seconds.
        pairs = interleaved(
            bench.repeat * 3, partial(added, bench, ours, batch, batches), partial(added, bench, plain, batch, batches)
        )
        yield compared(measure, pairs, "jobs/s", "plain row", at_least=least)


def added(bench: Bench, make: Callable[[int], object], batch: int, batches: int) -> float:
    """Rows per second; making the objects is part of it."""
    with Session(bench.engine) as session:
        begun = time.perf_counter()
        for _ in range(batches):
            session.add_all([make(n) for n in range(batch)])
            session.commit()
        return batch * batches / (time.perf_counter() - begun)


def bulk(bench: Bench) -> Iterator[Figure]:
    """`enqueue_many` against one INSERT … SELECT unnest in bare psycopg, into the same table."""
    jobs = 2_000 if bench.small else 100_000
    pairs = interleaved(bench.repeat, partial(many, bench, jobs), partial(unnested, bench, jobs))
    yield compared(f"enqueue_many, {jobs:,} jobs", pairs, "jobs/s", "unnest", at_least=0.7)


def selected(bench: Bench) -> Iterator[Figure]:
    """`enqueue_select` against a bare INSERT … SELECT of the same rows, into the same table."""
    jobs = 2_000 if bench.small else 1_000_000
    pairs = interleaved(bench.repeat, partial(by_select, bench, jobs), partial(bare_select, bench, jobs))
    yield compared(f"enqueue_select, {jobs:,} jobs", pairs, "jobs/s", "INSERT … SELECT", at_least=0.7)


def by_select(bench: Bench, jobs: int) -> float:
    """Jobs per second, from the statement in Python to the commit."""
    bench.empty()
    bench.settle()
    with Session(bench.engine) as session:
        session.connection()
        begun = time.perf_counter()
        number = func.generate_series(0, jobs - 1, type_=Integer).column_valued("n")
        session.execute(enqueue_select(nothing, select(number)))
        session.commit()
        seconds = time.perf_counter() - begun
    assert bench.count() == jobs
    return jobs / seconds


def bare_select(bench: Bench, jobs: int) -> float:
    """The same in SQL by hand."""
    bench.empty()
    bench.settle()
    with psycopg.connect(conninfo(bench.address)) as connection:
        begun = time.perf_counter()
        connection.execute(
            f"INSERT INTO {SCHEMA}.job (task, args) SELECT 'nothing', jsonb_build_object('n', n) FROM generate_series(0, %s) AS n",
            [jobs - 1],
        )
        connection.commit()
        seconds = time.perf_counter() - begun
    assert bench.count() == jobs
    return jobs / seconds


def unique_enqueue(bench: Bench) -> Iterator[Figure]:
    """Jobs with a unique key each, made of their arguments, against jobs without, both ours."""
    jobs = 2_000 if bench.small else 50_000
    unique = nothing.options(unique=Unique(by=("n",)))
    pairs = interleaved(bench.repeat, partial(many, bench, jobs, unique), partial(many, bench, jobs))
    yield compared(f"enqueue_many, {jobs:,} unique jobs : others", pairs, "jobs/s", "others", at_least=0.3)
    number, batches = count(), 1 if bench.small else 5
    bench.empty()
    pairs = interleaved(
        bench.repeat * 3,
        partial(added, bench, lambda _: enqueue(unique, next(number)), 1_000, batches),
        partial(added, bench, partial(enqueue, nothing), 1_000, batches),
    )
    yield compared("session.add_all of 1,000 unique jobs : others", pairs, "jobs/s", "others", at_least=0.3)


def many(bench: Bench, jobs: int, task: Task[[int], [int], Any] = nothing) -> float:
    """Jobs per second, from the arguments in Python to the commit."""
    bench.empty()
    bench.settle()
    with Session(bench.engine) as session:
        session.connection()
        begun = time.perf_counter()
        session.execute(enqueue_many([task.call(n) for n in range(jobs)]))
        session.commit()
        seconds = time.perf_counter() - begun
    assert bench.count() == jobs
    return jobs / seconds


def unnested(bench: Bench, jobs: int) -> float:
    """The same rows from arrays; the arguments are encoded by an f-string."""
    bench.empty()
    bench.settle()
    with psycopg.connect(conninfo(bench.address)) as connection:
        begun = time.perf_counter()
        connection.execute(
            f"INSERT INTO {SCHEMA}.job (task, args, queue, priority, max_attempts, meta) "
            "SELECT task, args::jsonb, queue, priority, max_attempts, meta::jsonb FROM unnest(%s::text[], %s::text[], "
            "%s::text[], %s::smallint[], %s::smallint[], %s::text[]) "
            "AS call(task, args, queue, priority, max_attempts, meta) RETURNING id",
            [
                ["nothing"] * jobs, [f'{{"n": {n}}}' for n in range(jobs)], ["default"] * jobs, [4] * jobs,
                [10] * jobs, ["{}"] * jobs,
            ],
        ).fetchall()  # fmt: skip
        connection.commit()
        seconds = time.perf_counter() - begun
    assert bench.count() == jobs
    return jobs / seconds


def gated(bench: Bench) -> Iterator[Figure]:
    """32 clients that commit one job each, while a worker has no free slot: what the trigger and its condition cost."""
    seconds = 0.5 if bench.small else 3.0
    with saturated(bench):
        pairs = interleaved(
            bench.repeat, partial(commits, bench, seconds), partial(commits, bench, seconds, trigger=False)
        )
    clients = CLIENTS[0] * CLIENTS[1]
    yield compared(f"{clients} enqueuers, workers saturated", pairs, "commits/s", "no trigger", at_least=0.9)


@contextmanager
def saturated(bench: Bench) -> Iterator[None]:
    """A worker whose slots have all been taken for so long that the gate it had opened is closed again."""
    bench.empty()
    bench.fill(HELD * 10, task="hold")
    with processes(1, serve, bench.address, {"default": HELD}) as worker:
        worker.go()
        bench.wait_for(f"SELECT count(*) >= {HELD} FROM {SCHEMA}.job WHERE status = 'running'")
        gate = f"to_timestamp(pg_sequence_last_value('{SCHEMA}.gate_any'))"
        bench.wait_for(f"SELECT coalesce({gate} < clock_timestamp(), true)")
        yield
        worker.stop()


def commits(bench: Bench, seconds: float, *, trigger: bool = True) -> float:
    """Commits per second of all clients together."""
    table = f"{SCHEMA}.job"
    bench.execute(f"DELETE FROM {table} WHERE status = 'queued'")
    bench.settle()
    bench.execute(f"ALTER TABLE {table} {'ENABLE' if trigger else 'DISABLE'} TRIGGER job_wake")
    try:
        size, threads = CLIENTS
        with processes(size, commit_singly, bench.address, threads, seconds) as group:
            group.go()
        return sum(group.results) / seconds
    finally:
        bench.execute(f"ALTER TABLE {table} ENABLE TRIGGER job_wake")


def commit_singly(ready: Callable[[], Any], address: str, threads: int, seconds: float) -> int:
    """How many jobs the threads have committed in `seconds` seconds. By psycopg alone, so that the server is the limit."""
    statement = f"INSERT INTO {SCHEMA}.job (task, args) VALUES ('hold', '{{\"n\": 1}}')"
    counts = [0] * threads
    until = [0.0]
    connected = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        with psycopg.connect(conninfo(address), autocommit=True) as connection:
            connected.wait()
            while time.monotonic() < until[0]:
                connection.execute(statement, prepare=True)
                counts[number] += 1

    clients = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for client in clients:
        client.start()
    ready()
    until[0] = time.monotonic() + seconds
    connected.wait()
    for client in clients:
        client.join()
    return sum(counts)
