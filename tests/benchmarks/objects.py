"""Objects as arguments, against handlers that load the same rows by hand, and against a flush by hand before the jobs are made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue
from sa_jobqueue.trials.bench.processes import processes

from .plain import Item, make_tables
from .report import Figure, compared, interleaved
from .schema import Bench
from .session import CONCURRENCY, rate
from .tasks import get_sync, take_sync
from .workers import work


def objects(bench: Bench) -> Iterator[Figure]:
    """32 at a time, each job with a row of its own; and 1,000 new rows with their jobs in one transaction."""
    jobs = 500 if bench.small else 6_000
    for kind, taken, by_hand in (("sync", "take_sync", "get_sync"), ("async", "take", "get")):
        pairs = interleaved(bench.repeat, partial(drained, bench, jobs, taken), partial(drained, bench, jobs, by_hand))
        title = f"drain, {kind} handler, an object argument, {CONCURRENCY} at a time"
        yield compared(title, pairs, "jobs/s", "get by hand", at_least=0.7)
    make_tables(bench)
    batches = 1 if bench.small else 5
    for flush in (False, True):  # connections, and SQLAlchemy's caches
        added(bench, 1, flush)
    pairs = interleaved(bench.repeat * 3, partial(added, bench, batches, False), partial(added, bench, batches, True))
    yield compared("session.add_all of 1,000 new rows and their jobs", pairs, "jobs/s", "flush by hand", at_least=0.7)


def drained(bench: Bench, jobs: int, task: str) -> float:
    """Jobs per second of one worker process."""
    make_tables(bench)
    with bench.engine.begin() as connection:
        numbers = select(func.generate_series(1, jobs).column_valued("n"))
        connection.execute(insert(Item).from_select(["n"], numbers))
    bench.prepare(jobs, task=task)
    with processes(1, work, bench.address, {"default": CONCURRENCY}) as group:
        group.go()
    return rate(bench, jobs)


def added(bench: Bench, batches: int, flush: bool) -> float:
    """Jobs per second. `flush`: before the jobs are made, which then take the keys."""
    bench.empty()
    with Session(bench.engine) as session:
        begun = time.perf_counter()
        for _ in range(batches):
            items = [Item(n=n) for n in range(1_000)]
            session.add_all(items)
            if flush:
                session.flush()
                session.add_all([enqueue(get_sync, item.id) for item in items])
            else:
                session.add_all([enqueue(take_sync, item) for item in items])
            session.commit()
        return batches * 1_000 / (time.perf_counter() - begun)
