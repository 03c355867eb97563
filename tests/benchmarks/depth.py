"""Draining beside other rows: many more due jobs, jobs of the future, other queues, dead index entries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import text

from sa_jobqueue.trials.bench.processes import processes

from .drain import rate_of_ours, seconds_to_drain
from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench
from .workers import SLOTS, serve, work


def depth(bench: Bench) -> Iterator[Figure]:
    """The same number of jobs, drained from a queue of 1,000,000 and from one that holds no others."""
    few, many = (1_000, 10_000) if bench.small else (10_000, 1_000_000)
    pairs = interleaved(bench.repeat, partial(_first, bench, few, many), partial(_first, bench, few, few))
    yield compared(f"drain of {few:,} with {many:,} queued", pairs, "jobs/s", f"{few:,} queued", at_least=0.9)


def _first(bench: Bench, jobs: int, queued: int) -> float:
    bench.prepare(queued)
    return _rate(bench, jobs)


def future(bench: Bench) -> Iterator[Figure]:
    """Jobs of the future at the highest priority, in front of those that are due in the order of the index."""
    jobs, later = (1_000, 5_000) if bench.small else (30_000, 500_000)

    def drained(beside: int) -> float:
        bench.empty()
        bench.fill(jobs)
        if beside:
            bench.fill(beside, priority=9, due="now() + interval '1 day'")
        bench.settle()
        return _rate(bench, jobs)

    pairs = interleaved(bench.repeat, partial(drained, later), partial(drained, 0))
    # Later versions skip within an index (18), so there the plain form would do too.
    least = 0.9 if bench.version <= 16 else None
    yield compared(f"drain with {later:,} future jobs at priority 9", pairs, "jobs/s", "without", at_least=least)


def queues(bench: Bench) -> Iterator[Figure]:
    """Three queues in one worker, with as many slots in all."""
    jobs = 1_500 if bench.small else 60_000
    three = {"a": SLOTS // 3, "b": SLOTS // 3, "c": SLOTS - 2 * (SLOTS // 3)}
    pairs = interleaved(
        bench.repeat,
        partial(rate_of_ours, bench, jobs, "nothing", queues=three),
        partial(rate_of_ours, bench, jobs, "nothing"),
    )
    yield compared("drain of 3 queues in one worker", pairs, "jobs/s", "1 queue", at_least=0.9)


def dead_entries(bench: Bench) -> Iterator[Figure]:
    """Behind index entries of finished jobs, which an old snapshot keeps; and how long jobs wait that are committed late there."""
    jobs, dead = (1_000, 5_000) if bench.small else (60_000, 200_000)
    pairs = interleaved(
        bench.repeat, partial(_behind, bench, jobs, dead, held=True), partial(_behind, bench, jobs, dead, held=False)
    )
    against = "snapshot released, vacuumed"
    yield compared(f"drain behind {dead:,} dead entries", pairs, "jobs/s", against, at_least=0.8)
    for kind, waits in _probed(bench, jobs * 3, dead).items():
        yield Figure(f"longest wait of {len(waits)} jobs {kind} meanwhile", max(waits), "s", at_most=1.0)


def _rate(bench: Bench, jobs: int) -> float:
    """Jobs per second of a worker that runs `jobs` jobs and ends."""
    with processes(1, work, bench.address, {"default": SLOTS}, jobs) as group:
        seconds = seconds_to_drain(bench, group, bench.execute(f"SELECT min(id) + {jobs} - 1 FROM {SCHEMA}.job"))
    completed = bench.count("status = 'completed'")
    assert completed == jobs, f"{completed} of {jobs} jobs completed"
    return jobs / seconds


def _behind(bench: Bench, jobs: int, dead: int, *, held: bool) -> float:
    with _dead_entries(bench, jobs, dead, held=held) as (_, last):
        with processes(1, work, bench.address, {"default": SLOTS}) as group:
            seconds = seconds_to_drain(bench, group, last)
        completed = bench.count("status = 'completed'")
        assert completed == jobs + dead, f"{completed} of {jobs + dead} jobs completed"
    return jobs / seconds


@contextmanager
def _dead_entries(bench: Bench, jobs: int, dead: int, *, held: bool = True) -> Iterator[tuple[datetime, int]]:
    """`dead` dead entries in front of `jobs` jobs. Yields their due time, and the id of the last job.

    Not `held`: vacuum has removed the entries.
    """
    bench.prepare(dead)
    due = bench.execute(f"SELECT max(run_at) FROM {SCHEMA}.job")
    with bench.engine.connect().execution_options(isolation_level="REPEATABLE READ") as snapshot:
        if held:
            snapshot.execute(text("SELECT count(*) FROM pg_class"))
        bench.execute(f"UPDATE {SCHEMA}.job SET status = 'completed', claims = 1, finished_at = now()")
        bench.fill(jobs)
        bench.settle()
        yield due, bench.execute(f"SELECT max(id) FROM {SCHEMA}.job")


def _probed(bench: Bench, jobs: int, dead: int) -> dict[str, list[float]]:
    """Seconds from the commit to the claim of jobs that are committed while a worker drains behind dead entries."""
    with (
        _dead_entries(bench, jobs, dead) as (before, last),
        processes(1, serve, bench.address, {"default": SLOTS}) as group,
        _probes(bench, before) as sent,
    ):
        seconds_to_drain(bench, group, last)
        sent.over.set()
        bench.wait_for(f"SELECT NOT EXISTS (SELECT FROM {SCHEMA}.job WHERE status IN ('queued', 'running'))")
        group.stop()
    waits: dict[str, list[float]] = {"committed late": [], "at a higher priority": []}
    for kind, id, committed in sent.jobs:
        claimed = bench.execute(f"SELECT extract(epoch FROM claimed_at) FROM {SCHEMA}.job WHERE id = {id}")
        waits[kind].append(max(float(claimed) - committed, 0.0))
    return waits


class Sent:
    """What the probes have committed: what it was, its id, and when."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, int, float]] = []
        self.over = threading.Event()


@contextmanager
def _probes(bench: Bench, before: datetime) -> Iterator[Sent]:
    """Over and over: a job of a transaction that began `before`, and is committed late; and one of a higher priority.

    The first kind belongs between the dead entries and the jobs, where a worker with a resume point does not look.
    """
    sent = Sent()
    insert = text(
        f"INSERT INTO {SCHEMA}.job (task, args, priority, run_at) VALUES ('nothing', '{{\"n\": 0}}', :priority, :due) RETURNING id"
    )
    clock = text("SELECT extract(epoch FROM clock_timestamp())")

    def commit(kind: str, priority: int, pause: float) -> None:
        with bench.engine.connect() as connection:
            while not sent.over.is_set():
                due = before if priority == 4 else datetime.now(UTC)
                id = connection.execute(insert, {"priority": priority, "due": due}).scalar_one()
                connection.commit()
                sent.jobs.append((kind, id, float(connection.execute(clock).scalar_one())))
                connection.rollback()
                sent.over.wait(pause)

    threads = [
        threading.Thread(target=commit, args=("committed late", 4, 0.07)),
        threading.Thread(target=commit, args=("at a higher priority", 9, 0.1)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield sent
    finally:
        sent.over.set()
        for thread in threads:
            thread.join()
