"""Time limits, child processes and cancels: what they cost, and how soon a cancel is heard."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from time import perf_counter, sleep
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Task, enqueue
from sa_jobqueue.statements import cancel_jobs
from sa_jobqueue.trials.bench.processes import processes

from .drain import rate_of_ours
from .latency import WARM_UP, waits_in_ms
from .report import Figure, compared, interleaved
from .schema import Bench
from .tasks import until_cancelled, until_cancelled_sync
from .workers import serve

#: Slots of a worker whose jobs run in child processes: one for each.
_CHILDREN = 2


def limits_drain(bench: Bench) -> Iterator[Figure]:
    """Jobs with an expiry and a deadline, an hour from now, against jobs without, both ours."""
    jobs = 2_000 if bench.small else 60_000
    pairs = interleaved(
        bench.repeat,
        partial(rate_of_ours, bench, jobs, "nothing", limits=True),
        partial(rate_of_ours, bench, jobs, "nothing"),
    )
    yield compared("drain, expiry and deadline : none", pairs, "jobs/s", "none")


def child_drain(bench: Bench) -> Iterator[Figure]:
    """`executor="process"` against threads, both ours, with as many slots."""
    jobs = 200 if bench.small else 5_000
    slots = {"default": _CHILDREN}
    pairs = interleaved(
        bench.repeat,
        partial(rate_of_ours, bench, jobs, "nothing_in_child", queues=slots),
        partial(rate_of_ours, bench, jobs, "nothing_sync", queues=slots),
    )
    yield compared('drain, executor="process", 2 slots : threads', pairs, "jobs/s", "threads")


def cancel(bench: Bench) -> Iterator[Figure]:
    """From the return of the commit of `cancel_jobs` to the moment the running handler hears of it, job by job."""
    jobs = 10 if bench.small else 100
    for task, kind in ((until_cancelled, "async"), (until_cancelled_sync, "sync")):
        waits = _until_heard(bench, task, jobs + WARM_UP)
        for name, number in (("p50", 49), ("p98", 97)):
            found = statistics.quantiles(waits, n=100)[number]
            yield Figure(f"commit of a cancel to the {kind} handler, {name}", found, "ms", at_most=1_000)


def _until_heard(bench: Bench, task: Task[..., [int], Any], jobs: int) -> list[float]:
    """Milliseconds for each job. One runs at a time, and nothing else."""
    sent: dict[int, float] = {}
    bench.empty()
    bench.settle()
    with processes(1, serve, bench.address, {"default": 1}) as worker:
        worker.go()
        with Session(bench.engine) as session:
            for n in range(jobs):
                job = enqueue(task, n)
                session.add(job)
                session.commit()
                until = perf_counter() + 60
                while session.scalar(select(Job.status).where(Job.id == job.id)) != "running":
                    assert perf_counter() < until, f"job {job.id} does not begin"
                    session.rollback()
                    sleep(0.005)
                sleep(0.02)  # its handler has begun
                session.execute(cancel_jobs(Job.id == job.id))
                session.commit()
                sent[n] = perf_counter()
                while session.scalar(select(Job.status).where(Job.id == job.id)) == "running":
                    assert perf_counter() < until, f"job {job.id} does not end"
                    session.rollback()
                    sleep(0.005)
        worker.stop()
    return waits_in_ms(sent, worker.results[0])
