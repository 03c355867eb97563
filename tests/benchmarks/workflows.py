"""Workflows: fan-in, fan-out at run time, many chains, and how soon a job starts once the one before it has ended.

The reference are the same jobs in no workflow. Workers are told to stop when all is done, since a queue may be empty for a moment
while jobs wait for others. Times are the database's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from sqlalchemy import text
from sqlalchemy.orm import Session

from sa_jobqueue import Workflow
from sa_jobqueue.rules.lifecycle import Claim, Rules, decide
from sa_jobqueue.rules.outcomes import Completed
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.trials.bench.processes import processes
from sa_jobqueue.workflows import Addition

from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench, service_connection
from .tasks import nothing
from .workers import SLOTS, serve

_DONE = f"SELECT NOT EXISTS (SELECT FROM {SCHEMA}.job WHERE status IN ('queued', 'blocked', 'running'))"
_RATE = f"SELECT count(*) / extract(epoch FROM max(finished_at) - min(claimed_at))::float8 FROM {SCHEMA}.job"
_GAP = f"""
    SELECT extract(epoch FROM last.claimed_at - (SELECT max(finished_at) FROM {SCHEMA}.job WHERE id < last.id))::float8 * 1000
    FROM (SELECT id, claimed_at FROM {SCHEMA}.job ORDER BY id DESC LIMIT 1) AS last
"""
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def fan_in(bench: Bench) -> Iterator[Figure]:
    """100,000 parents of one child, two processes."""
    jobs = 1_000 if bench.small else 100_000
    enqueued: list[float] = []
    gaps: list[float] = []
    before = bench.execute(_DEADLOCKS)
    pairs = interleaved(
        bench.repeat, partial(_joined, bench, jobs, 2, enqueued, gaps), partial(_plain, bench, jobs + 1, 2)
    )
    yield compared(
        f"fan-in {jobs:,} to 1, two processes : in no workflow", pairs, "jobs/s", "in no workflow", at_least=0.55
    )
    yield Figure("fan-in, from the last end to the start of the child", statistics.median(gaps), "ms", at_most=150)
    yield Figure("fan-in, deadlocks", float(bench.execute(_DEADLOCKS) - before), "", at_most=0)
    yield Figure(f"session.add and commit of {jobs:,} nodes", statistics.median(enqueued), "s", at_most=5)


def fan_in_held(bench: Bench) -> Iterator[Figure]:
    """The same in one process, while a snapshot is held, against none held."""
    jobs = 1_000 if bench.small else 60_000
    pairs = interleaved(
        bench.repeat,
        partial(_joined, bench, jobs, 1, [], [], held=True),
        partial(_joined, bench, jobs, 1, [], []),
    )
    yield compared("fan-in behind a held snapshot : none held", pairs, "jobs/s", "none held", at_least=0.5)


def chains(bench: Bench) -> Iterator[Figure]:
    """10,000 chains of 10, two processes."""
    number = 100 if bench.small else 10_000
    rates = []
    for _ in range(bench.repeat):
        bench.empty()
        for _ in range(0, number, 1_000):
            with Session(bench.engine) as session:
                session.add_all([_chain(10) for _ in range(min(number, 1_000))])
                session.commit()
        rates.append(_run(bench, 2))
    yield Figure(f"{number:,} chains of 10, two processes", statistics.median(rates), "nodes/s", at_least=10_000)


def chain_hop(bench: Bench) -> Iterator[Figure]:
    """From the end of a job to the start of the next one, on an idle system."""
    hops = 30 if bench.small else 300
    bench.empty()
    with Session(bench.engine) as session:
        session.add(_chain(hops + 1))
        session.commit()
    _run(bench, 1)
    with bench.engine.connect() as connection:
        waits = connection.scalars(
            text(
                f"SELECT extract(epoch FROM job.claimed_at - before.finished_at)::float8 * 1000 FROM {SCHEMA}.job "
                f"JOIN {SCHEMA}.workflow_dependency AS edge ON edge.child_id = job.id JOIN {SCHEMA}.job AS before ON before.id = edge.parent_id"
            )
        ).all()
    yield Figure("chain, from an end to the next start, p50", statistics.median(waits), "ms", at_most=4)


def fan_out(bench: Bench) -> Iterator[Figure]:
    """100,000 children, added by a handler that then completes: until all can be claimed. No worker takes them."""
    children = 1_000 if bench.small else 100_000
    totals: list[float] = []
    longest: list[float] = []
    for _ in range(bench.repeat):
        took = _spread(bench, children)
        totals.append(sum(took))
        longest.append(max(took))
    yield Figure(f"fan-out 1 to {children:,}, until all can be claimed", statistics.median(totals), "s", at_most=1.5)
    yield Figure("fan-out, the longest statement", statistics.median(longest) * 1e3, "ms", at_most=50)


MEASURES = (fan_in, fan_in_held, chains, chain_hop, fan_out)


def _chain(length: int) -> Workflow:
    workflow = Workflow("chain")
    node = workflow.add(nothing, 0)
    for number in range(1, length):
        node = workflow.after(node, nothing, number)
    return workflow


def _joined(
    bench: Bench, jobs: int, size: int, enqueued: list[float], gaps: list[float], *, held: bool = False
) -> float:
    bench.empty()
    workflow = Workflow("fan-in")
    workflow.after([workflow.add(nothing, n) for n in range(jobs)], nothing, jobs)
    began = perf_counter()
    with Session(bench.engine) as session:
        session.add(workflow)
        session.commit()
    enqueued.append(perf_counter() - began)
    rate = _run(bench, size, held=held)
    gaps.append(bench.execute(_GAP))
    return rate


def _plain(bench: Bench, jobs: int, size: int) -> float:
    bench.empty()
    bench.fill(jobs)
    return _run(bench, size)


def _run(bench: Bench, size: int, *, held: bool = False) -> float:
    """Jobs per second of `size` workers."""
    bench.settle()
    with ExitStack() as stack:
        if held:
            snapshot = stack.enter_context(bench.engine.connect().execution_options(isolation_level="REPEATABLE READ"))
            snapshot.execute(text("SELECT count(*) FROM pg_class"))
        group = stack.enter_context(processes(size, serve, bench.address, {"default": SLOTS}))
        group.go()
        bench.wait_for(_DONE, patience=180)
        group.stop()
    assert bench.count("status <> 'completed' OR claims <> 1") == 0
    return float(bench.execute(_RATE))


def _spread(bench: Bench, children: int) -> list[float]:
    """Seconds of each step of the release."""
    bench.empty()
    workflow = Workflow("fan-out")
    first = workflow.add(nothing, 0)
    with Session(bench.engine) as session:
        session.add(workflow)
        session.flush()
        id, job_id = workflow.id, first.job_id
        session.commit()
    bench.execute(f"UPDATE {SCHEMA}.job SET status = 'running', claim_token = 1, attempt = 1")
    connection, _ = service_connection(bench.address)
    with connection:
        more = Addition(id, me=job_id)
        for number in range(children):
            more.after(more.me, nothing, number)
        connection.execute(more.insert())
        claim = Claim(job_id, 1, 1, 1, 0, f'{{"workflow": {id}}}')
        default_store.apply(connection, [decide(claim, Completed(), Rules(), random=0.5)])
        connection.commit()
        bench.settle()
        steps: list[float] = []
        again = True
        while again:
            began = perf_counter()
            again = id in default_store.advance(connection, {id: 0}).again
            connection.commit()
            steps.append(perf_counter() - began)
    assert bench.count("status = 'queued'") == children
    return steps
