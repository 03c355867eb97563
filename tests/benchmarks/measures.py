"""The measures that keep the shape honest; not tests: nothing fails by the clock.

    python -m tests.benchmarks                  # on the embedded server, about two minutes
    python -m tests.benchmarks --small          # a few seconds, only to see that they run
    python -m tests.benchmarks --database-url postgresql://… drain latency

Each prints a line: measure, ours, target, met. The schema `sa_jobqueue_bench` is made for it and dropped afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, create_engine, func, insert, literal, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Registry, Worker, WorkerSettings, enqueue, enqueue_many, task
from sa_jobqueue.embedded import embedded_url
from sa_jobqueue.migrations import downgrade_database, upgrade_database
from sa_jobqueue.operations import claim
from sa_jobqueue.urls import database_url
from sa_jobqueue.worker.connections import Connector

SCHEMA = "sa_jobqueue_bench"
REGISTRY = Registry()
STARTED: dict[int, float] = {}


@task(registry=REGISTRY, name="nothing")
async def nothing(n: int) -> None:
    """Do nothing."""


@task(registry=REGISTRY, name="note_start")
async def note_start(n: int) -> None:
    """Note when it started."""
    STARTED[n] = time.perf_counter()


@dataclass(frozen=True)
class Figure:
    """One line of the result."""

    measure: str
    ours: str
    target: str
    met: bool


def drain(engine: Engine, *, small: bool) -> Iterator[Figure]:
    """No-op async jobs in one process: jobs per second, the completion committed."""
    jobs = 2_000 if small else 50_000
    rates = []
    for _ in range(1 if small else 3):
        empty(engine)
        fill(engine, [nothing.call(n) for n in range(jobs)])
        with running(engine, until_idle=True) as took:
            pass
        rates.append(jobs / took())
        assert count(engine, Job.status == "completed") == jobs
    rate = statistics.median(rates)
    yield Figure("drain, async no-op, 1 process", f"{rate:,.0f} jobs/s", "≥ 10,000 jobs/s", rate >= 10_000)


def latency(engine: Engine, *, small: bool) -> Iterator[Figure]:
    """From the commit of one job to the start of its handler, on an idle worker: one job each 20 ms.

    Counted from the moment when the commit has returned to the producer, a process of its own as a web server is; and
    from before the INSERT.
    """
    empty(engine)
    STARTED.clear()
    jobs = 50 if small else 500
    with running(engine), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as producer:
        sent = producer.submit(produce, engine.url.render_as_string(hide_password=False), jobs).result()
        waiting_until(lambda: len(STARTED) >= jobs)
    for since, times in zip(("commit", "enqueue"), zip(*sent, strict=True), strict=True):
        waits = [(STARTED[n] - sent_at) * 1000 for n, sent_at in enumerate(times)]
        median, high = statistics.median(waits), statistics.quantiles(waits, n=100)[98]
        target = since == "commit"
        yield Figure(
            f"{since} to start, idle worker, p50", f"{median:.2f} ms", "< 5 ms" if target else "",
            not target or median < 5,
        )  # fmt: skip
        yield Figure(f"{since} to start, idle worker, p99", f"{high:.2f} ms", "", True)


def produce(url: str, jobs: int) -> list[tuple[float, float]]:
    """Enqueue one job each 20 ms; the time after the commit of each, and the time before its INSERT."""
    engine = create_engine(url, execution_options={"schema_translate_map": {"sa_jobqueue": SCHEMA}})
    sent = []
    with Session(engine) as session:
        for n in range(-10, jobs):  # the first few make the connection
            time.sleep(0.02)
            before = time.perf_counter()
            if n >= 0:
                session.add(enqueue(note_start, n))
            else:
                session.execute(text("SELECT 1"))
            session.commit()
            sent.append((time.perf_counter(), before))
    engine.dispose()
    return sent[10:]


def idle(engine: Engine, *, small: bool) -> Iterator[Figure]:
    """The processor time of a worker that has nothing to do, its service threads included."""
    empty(engine)
    seconds = 2 if small else 20
    with running(engine):
        time.sleep(2)  # past the first looks, which come soon after each other
        before = time.process_time()
        time.sleep(seconds)
        share = (time.process_time() - before) / seconds
    yield Figure("idle worker, processor", f"{share:.2%} of a core", "< 1 %", share < 0.01)


def backlog(engine: Engine, *, small: bool) -> Iterator[Figure]:
    """The time of a claim of 10 with 1,000,000 jobs queued against 10,000."""
    few, many = (1_000, 20_000) if small else (10_000, 1_000_000)
    times = {size: claim_time(engine, size) for size in (few, many)}
    ratio = times[many] / times[few]
    measure = f"claim of 10 with {many:,} queued : with {few:,}"
    yield Figure(measure, f"{times[many]:.3f} ms : {times[few]:.3f} ms = {ratio:.2f}", "≤ 1.3", ratio <= 1.3)


def claim_time(engine: Engine, queued: int) -> float:
    """Milliseconds, median of 300 claims."""
    empty(engine)
    rows = select(literal("nothing"), func.jsonb_build_object("n", 1)).select_from(func.generate_series(1, queued))
    with engine.begin() as connection:
        connection.execute(insert(Job).from_select(["task", "args"], rows, include_defaults=False))
    analyze(engine)
    connection = Connector(engine, lease=60).connect()
    times = []
    for _ in range(300):
        start = time.perf_counter()
        with connection.begin():
            claim(connection, worker="bench", queues={"default": 10}, lease=60)
        times.append(time.perf_counter() - start)
    connection.close()
    return statistics.median(times) * 1000


MEASURES: dict[str, Callable[..., Iterator[Figure]]] = {
    "drain": drain, "latency": latency, "idle": idle, "backlog": backlog,
}  # fmt: skip


@contextmanager
def running(engine: Engine, *, until_idle: bool = False) -> Iterator[Callable[[], float]]:
    """A worker on a thread of its own; yields how long it ran, once it has ended."""
    worker = Worker(engine, {"default": 100}, registry=REGISTRY, settings=WorkerSettings())
    seconds: list[float] = []
    ready = threading.Event()

    async def serve() -> None:
        asyncio.get_running_loop().call_later(0.2, ready.set)
        await worker.serve(until_idle=until_idle)

    def run() -> None:
        start = time.perf_counter()
        asyncio.run(serve())
        seconds.append(time.perf_counter() - start)

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield lambda: seconds[0]
    finally:
        if not until_idle:
            worker.stop()
        thread.join()


def waiting_until(done: Callable[[], bool], timeout: float = 60) -> None:
    """Wait for a condition."""
    until = time.monotonic() + timeout
    while not done():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.01)


def fill(engine: Engine, calls: list[object]) -> None:
    """Enqueue, and let the planner know."""
    with Session(engine) as session:
        session.execute(enqueue_many(calls))  # type: ignore[arg-type]
        session.commit()
    analyze(engine)


def empty(engine: Engine) -> None:
    """No jobs."""
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {SCHEMA}.job"))


def analyze(engine: Engine) -> None:
    """Vacuum and analyze, as autovacuum would have done."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"VACUUM ANALYZE {SCHEMA}.job"))


def count(engine: Engine, *where: object) -> int:
    """How many jobs there are."""
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(Job).where(*where)) or 0  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []], help="all, if none is named")
    parser.add_argument("--small", action="store_true", help="a few seconds, only to see that they run")
    parser.add_argument("--database-url", default=os.environ.get("SA_JOBQUEUE_TEST_URL"))
    given = parser.parse_args()
    directory = os.environ.get("SA_JOBQUEUE_EMBEDDED_DIR")
    url = given.database_url or embedded_url(directory=Path(directory) if directory else None)
    engine = create_engine(
        database_url(url), pool_size=20, execution_options={"schema_translate_map": {"sa_jobqueue": SCHEMA}}
    )
    downgrade_database(engine, schema=SCHEMA)
    upgrade_database(engine, schema=SCHEMA)
    table = Table("measure", "ours", "target", "met")
    try:
        for name in given.measures or MEASURES:
            for figure in MEASURES[name](engine, small=given.small):
                table.add_row(figure.measure, figure.ours, figure.target, "yes" if figure.met else "no")
        with engine.connect() as connection:
            table.title = str(connection.scalar(text("SHOW server_version")))
        Console().print(table)
    finally:
        downgrade_database(engine, schema=SCHEMA)
        engine.dispose()
