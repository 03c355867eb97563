"""Durable steps and waits: the cost of a step, and the cost of a million jobs that wait for signals.

The reference of a step is a bare INSERT with a commit, of a row of the same size, on the very connection on which steps are recorded. Claims, an idle
worker and the way from a signal's commit to the handler are measured with and without jobs that wait, first without, then with, then
without again.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Signal
from sa_jobqueue.arguments.context import ClaimedJob, StepCall
from sa_jobqueue.trials.bench.processes import processes
from sa_jobqueue.util.urls import database_url
from sa_jobqueue.worker.connections.service import Connector
from sa_jobqueue.worker.running.reopening import Sessions
from sa_jobqueue.worker.running.steps import Checkpoints, Steps

from .drain import seconds_to_drain
from .idle import cost, processor_time
from .latency import WARM_UP, waits_in_ms
from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench
from .workers import SLOTS, serve, work

T = TypeVar("T")

_TABLES = f"{SCHEMA}.step, {SCHEMA}.wait, {SCHEMA}.signal"


def steps(bench: Bench) -> Iterator[Figure]:
    """A step with its own commit, called and recorded in a `def` handler and in an async handler."""
    number = 100 if bench.small else 1_000
    bench.empty()
    bench.execute(f"TRUNCATE {_TABLES}")
    bench.execute(f"CREATE TABLE IF NOT EXISTS {SCHEMA}.bare_step (LIKE {SCHEMA}.step INCLUDING ALL)")
    with processes(1, _steps, bench.address, number, max(bench.repeat, 5)) as group:
        group.go()
    for kind, pairs in group.results[0].items():
        for what, place, unit in (("with its commit", 0, "ms"), ("processor time", 1, "ms of both")):
            both = [(ours[place], bare[place]) for ours, bare in pairs]
            title = f"a step of {kind} handler, {what}"
            yield compared(title, both, unit, "INSERT, commit, same connection", at_most=1.7)


def _steps(ready: Callable[[], Any], address: str, number: int, repeat: int) -> dict[str, list[Any]]:
    """Milliseconds of a step and of a bare INSERT in turn, and their processor time here and in the server process."""
    engine = create_engine(database_url(address))
    checkpoints = Checkpoints(Connector(engine, lease=60))
    claimed = text(
        f"INSERT INTO {SCHEMA}.job (task, status, claims, claim_token, attempt, worker, claimed_at, lease_expires_at) "
        "VALUES ('nothing', 'running', 1, 7, 1, 'bench', now(), now() + interval '1 hour') RETURNING id"
    )
    insert = text(
        f"INSERT INTO {SCHEMA}.bare_step (job_id, claim_token, revision, kind, name, digest, took, result) "
        "VALUES (:job, 7, 1, 'step', :name, :digest, 0.001, '{\"n\": 1}')"
    )
    ready()

    def of_a_job() -> tuple[int, Steps]:
        with engine.begin() as connection:
            id = connection.scalar(claimed)
        job = ClaimedJob(id, 7, "default", "nothing", 4, None, 1, 10, 0, "", "", None, None)  # type: ignore[arg-type]
        return id, Steps(job, checkpoints, Sessions(engine=engine), time.monotonic, policy="warn", limit=2**20)

    def of_thread(n: int) -> dict[str, int]:
        return {"n": n}

    def call(n: int) -> StepCall:
        return StepCall(f"step {n}", of_thread, (1,), {}, None, 1)

    def ours() -> tuple[float, ...]:
        _, steps = of_a_job()
        steps.run(call(-1))
        began = _clocks(checkpoints)
        for n in range(number):
            steps.run(call(n))
        return _since(began, checkpoints, number)

    async def on_loop() -> tuple[float, ...]:
        _, steps = of_a_job()

        async def step(n: int) -> dict[str, int]:
            return {"n": n}

        await steps.arun(StepCall("first", step, (1,), {}, None, 1))
        began = _clocks(checkpoints)
        for n in range(number):
            await steps.arun(StepCall(f"step {n}", step, (1,), {}, None, 1))
        return _since(began, checkpoints, number)

    def bare() -> tuple[float, ...]:
        id, _ = of_a_job()
        connection = checkpoints._free[0]
        began = _clocks(checkpoints)
        for n in range(number):
            with connection.begin():
                connection.execute(insert, {"job": id, "name": f"step {n}", "digest": "0" * 32})
        return _since(began, checkpoints, number)

    ours()  # opens the connection, and prepares
    found: dict[str, list[Any]] = {
        "a def": interleaved(repeat, ours, bare),  # type: ignore[arg-type]
        "an async": interleaved(repeat, lambda: asyncio.run(on_loop()), bare),  # type: ignore[arg-type]
    }
    checkpoints.close()
    engine.dispose()
    return found


def _clocks(checkpoints: Checkpoints) -> tuple[float, float]:
    """The time, and the processor time of this process and of the connection's server process."""
    raw: Any = checkpoints._free[0].connection.dbapi_connection
    return time.perf_counter(), time.process_time() + processor_time(raw.info.backend_pid)


def _since(began: tuple[float, float], checkpoints: Checkpoints, number: int) -> tuple[float, ...]:
    return tuple((now - then) / number * 1_000 for now, then in zip(_clocks(checkpoints), began, strict=True))


def waits(bench: Bench) -> Iterator[Figure]:
    """Claims, and the time from a signal to its handler, next to 1,000,000 jobs that wait."""
    jobs = 1_000 if bench.small else 30_000
    beside, found = _beside(
        bench,
        lambda: ([_drained(bench, jobs) for _ in range(bench.repeat)], [_signals(bench) for _ in range(bench.repeat)]),
    )
    (before, early), (with_them, between), (after, late) = found
    reference = statistics.median([*before, *after])
    pairs = [(rate, reference) for rate in with_them]
    yield compared(f"drain of {jobs:,} {beside}", pairs, "jobs/s", "alone", at_least=0.97)
    for name, runs in (("alone", early + late), (beside, between)):
        percent = statistics.quantiles([wait for run in runs for wait in run], n=100)
        yield Figure(f"signal's commit to the handler, {name}, p50", percent[49], "ms", at_most=10)
        yield Figure(f"signal's commit to the handler, {name}, p95", percent[94], "ms", at_most=10)


def idle_waits(bench: Bench) -> Iterator[Figure]:
    """An idle worker next to 1,000,000 jobs that wait."""
    beside, (before, with_them, after) = _beside(bench, lambda: sum(cost(bench)[:2]))
    pairs = [(with_them, (before + after) / 2)]
    yield compared(f"idle worker and its server processes {beside}", pairs, "% of a core", "alone", at_most=1.03)


def _beside(bench: Bench, measure: Callable[[], T]) -> tuple[str, list[T]]:
    """Measure without waiting jobs, with them, and without them again, so that a drift counts for neither side."""
    many, found = 10_000 if bench.small else 1_000_000, []
    for waiting in (0, many, 0):
        _wait(bench, waiting)
        found.append(measure())
    return f"beside {many:,} that wait for signals", found


def _wait(bench: Bench, jobs: int) -> None:
    """Fill the tables with this number of jobs, each of which waits for its own signal, and nothing else."""
    bench.empty()
    bench.execute(f"TRUNCATE {_TABLES}")
    blocked = (
        f"WITH made AS (INSERT INTO {SCHEMA}.job (task, args, status, claims, attempt) "
        "SELECT 'waits', jsonb_build_object('n', n), 'blocked', 1, 0 FROM generate_series(1, :jobs) AS n RETURNING id) "
        f"INSERT INTO {SCHEMA}.wait (job_id, step, signal, is_new) SELECT id, 'signal:go', 'other:' || id, false FROM made"
    )
    if jobs:
        bench.execute(blocked, jobs=jobs)
    bench.settle()
    bench.execute(f"VACUUM ANALYZE {_TABLES}")


def _drained(bench: Bench, jobs: int) -> float:
    """Jobs per second of a worker that drains this number of jobs, next to the waiting jobs."""
    bench.execute(f"DELETE FROM {SCHEMA}.job WHERE status = 'completed'")
    bench.fill(jobs)
    bench.settle()
    with processes(1, work, bench.address, {"default": SLOTS}) as group:
        seconds = seconds_to_drain(bench, group)
    assert bench.count("status = 'completed'") == jobs
    return jobs / seconds


def _signals(bench: Bench) -> list[float]:
    """Milliseconds from the commit of each signal to its return in the handler. A signal is sent every 20 ms."""
    number = 50 if bench.small else 200
    bench.execute(f"DELETE FROM {SCHEMA}.job WHERE status = 'completed'")
    bench.fill(number + WARM_UP, task="waits")
    with processes(1, serve, bench.address, {"default": 10}) as worker:
        worker.go()
        bench.wait_for(
            f"SELECT count(*) = {number + WARM_UP} FROM {SCHEMA}.wait WHERE signal LIKE 'go:%' AND NOT is_new"
        )
        with processes(1, _send, bench.address, number) as sender:
            sender.go()
        bench.wait_for(f"SELECT NOT EXISTS (SELECT FROM {SCHEMA}.wait WHERE signal LIKE 'go:%')")
        bench.wait_for(f"SELECT NOT EXISTS (SELECT FROM {SCHEMA}.job WHERE status IN ('queued', 'running'))")
        worker.stop()
    return waits_in_ms(sender.results[0], worker.results[0])


def _send(ready: Callable[[], Any], address: str, number: int) -> dict[int, float]:
    """Send signals. Returns when each commit returned, by `n`."""
    sent: dict[int, float] = {}
    engine = create_engine(database_url(address))
    with Session(engine) as session:
        session.connection()
        session.rollback()
        ready()
        for n in range(1, number + WARM_UP + 1):
            time.sleep(0.02)
            session.add(Signal(f"go:{n}"))
            session.commit()
            sent[n] = time.perf_counter()
    engine.dispose()
    return sent


MEASURES = (steps, waits, idle_waits)
