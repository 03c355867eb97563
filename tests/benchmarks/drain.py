"""Draining: jobs per second from the start of the first claim to the last durable completion.

The clock is the database's, and the same for the raw loop and for the worker. It begins with the first claim's
transaction (`claimed_at`), so starting Python is no part of it, and ends when another connection sees that no job is
queued or running. Every run has processes of its own, connected and waiting before they are let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from sa_jobqueue.trials.bench import processes as progress
from sa_jobqueue.trials.bench.processes import Processes, processes

from . import raw
from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench
from .workers import SLOTS, work


def seconds_to_drain(bench: Bench, group: Processes, last: int | None = None) -> float:
    """Let the processes begin. Seconds, taken as `sa-jobqueue bench drain` does. `last`: the id of the last job."""
    with bench.looking() as connection:
        try:
            return progress.seconds_to_drain(connection, group, last=last)
        finally:
            connection.invalidate()


def rate_of_ours(
    bench: Bench,
    jobs: int,
    task: str,
    *,
    size: int = 1,
    queues: dict[str, int] | None = None,
    scope: str | None = None,
    limits: bool = False,
    worker: Callable[..., dict[str, int]] = work,
) -> float:
    """Jobs per second of `size` worker processes, each of which runs `worker`. `scope`, `limits`: see `Bench.fill`."""
    wanted = queues or {"default": SLOTS}
    bench.prepare(jobs, task=task, queues=list(wanted), scope=scope, limits=limits)
    with processes(size, worker, bench.address, wanted) as group:
        seconds = seconds_to_drain(bench, group)
    _check(bench, jobs, deleted=task.endswith("_deleted"))
    return jobs / seconds


def rate_of_raw(bench: Bench, jobs: int, *, size: int = 1, deleted: bool = False, fused: bool = False) -> float:
    """Jobs per second of `size` bare loops. `fused`: see `raw`."""
    bench.prepare(jobs)
    loop = (raw.drain_fused, bench.address) if fused else (raw.drain, bench.address, bench.batch, deleted)
    with processes(size, *loop) as group:
        seconds = seconds_to_drain(bench, group)
    assert sum(group.results) == jobs, f"the bare loops finished {group.results} of {jobs} jobs"
    _check(bench, jobs, deleted=deleted)
    return jobs / seconds


def _check(bench: Bench, jobs: int, *, deleted: bool) -> None:
    """All that was timed was done."""
    left, completed = bench.count(), bench.count("status = 'completed'")
    assert (left, completed) == ((0, 0) if deleted else (jobs, jobs)), f"{left} jobs are there, {completed} completed"


def drain(bench: Bench) -> Iterator[Figure]:
    """No-op jobs against the raw loop, kept and deleted, in one process and in two."""
    jobs = 2_000 if bench.small else 60_000
    for measure, task, size, target in (
        ("drain, async no-op, 1 process", "nothing", 1, 0.8),
        ("drain, async no-op, 2 processes", "nothing", 2, 0.8),
        ("drain, sync no-op on threads, 1 process", "nothing_sync", 1, 0.7),
        ("drain, async no-op, retain=0, 1 process", "nothing_deleted", 1, 0.8),
    ):
        deleted = task == "nothing_deleted"
        pairs = interleaved(
            bench.repeat,
            partial(rate_of_ours, bench, jobs * size, task, size=size),
            partial(rate_of_raw, bench, jobs * size, size=size, deleted=deleted),
        )
        yield compared(measure, pairs, "jobs/s", "raw, deleted" if deleted else "raw", at_least=target)
    pairs = interleaved(
        bench.repeat, partial(rate_of_ours, bench, jobs, "nothing"), partial(rate_of_raw, bench, jobs, fused=True)
    )
    yield compared("drain, async no-op, 1 process", pairs, "jobs/s", "raw, fused", at_least=0.7)
    pairs = interleaved(
        bench.repeat,
        partial(rate_of_ours, bench, jobs, "nothing"),
        partial(rate_of_ours, bench, jobs, "nothing", size=2),
    )
    yield compared("drain, async no-op, 1 process : 2 processes", pairs, "jobs/s", "2 processes")


def retain(bench: Bench) -> Iterator[Figure]:
    """Deleted on completion against kept, both ours."""
    yield _against_nothing(bench, "nothing_deleted", "drain with retain=0 : kept", "kept", at_least=1.0)


def record(bench: Bench) -> Iterator[Figure]:
    """Results that are recorded against none, both ours."""
    yield _against_nothing(bench, "result", "drain with record=True : without a result", "without", at_least=0.8)


def _against_nothing(bench: Bench, task: str, measure: str, against: str, *, at_least: float) -> Figure:
    """Jobs of this task against jobs that do nothing and are kept."""
    jobs = 2_000 if bench.small else 60_000
    pairs = interleaved(
        bench.repeat, partial(rate_of_ours, bench, jobs, task), partial(rate_of_ours, bench, jobs, "nothing")
    )
    return compared(measure, pairs, "jobs/s", against, at_least=at_least)


def unique_drain(bench: Bench) -> Iterator[Figure]:
    """Jobs with a unique key each against jobs without, both ours."""
    jobs = 2_000 if bench.small else 60_000
    for scope, title in (("started", ""), ("queued", ', scope="queued"')):
        pairs = interleaved(
            bench.repeat,
            partial(rate_of_ours, bench, jobs, "nothing", scope=scope),
            partial(rate_of_ours, bench, jobs, "nothing"),
        )
        yield compared(f"drain, unique jobs{title} : others", pairs, "jobs/s", "others", at_least=0.4)


def notes_drain(bench: Bench) -> Iterator[Figure]:
    """Jobs that say how far they are, or keep log lines, against jobs that say nothing, both ours."""
    jobs = 2_000 if bench.small else 60_000
    for task, title in (
        ("progress", "one report of progress"),
        ("line", "one kept log line"),
        ("ten_lines", "ten kept log lines"),
    ):
        pairs = interleaved(
            bench.repeat, partial(_rate_of_notes, bench, jobs, task), partial(rate_of_ours, bench, jobs, "nothing")
        )
        yield compared(f"drain, {title} : nothing said", pairs, "jobs/s", "nothing said")


def _rate_of_notes(bench: Bench, jobs: int, task: str) -> float:
    """Jobs per second until all have ended, and what they have said is written."""
    rate_of_ours(bench, jobs, task)
    notes = f"{SCHEMA}.job_progress" if task == "progress" else f"{SCHEMA}.job_log"
    said = bench.execute(f"SELECT count(DISTINCT job_id) FROM {notes}")
    assert said == jobs, f"{said} of {jobs} jobs have said something"
    seconds = bench.execute(
        f"SELECT extract(epoch FROM greatest(max(finished_at), (SELECT max(written_at) FROM {notes})) - min(claimed_at))::float8 "
        f"FROM {SCHEMA}.job"
    )
    return jobs / float(seconds)
