"""Write-ahead log per job, kept and deleted, against the raw loop; each run begins after a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from sa_jobqueue.trials.bench.processes import processes

from . import raw
from .drain import seconds_to_drain
from .report import Figure, compared, interleaved
from .schema import Bench
from .workers import SLOTS, work


def wal(bench: Bench) -> Iterator[Figure]:
    """Bytes of the whole server, so nothing else should write meanwhile."""
    jobs = 2_000 if bench.small else 60_000
    for kind, task, deleted in (("kept", "nothing", False), ("deleted", "nothing_deleted", True)):
        pairs = interleaved(
            bench.repeat,
            partial(_bytes, bench, jobs, task, work, {"default": SLOTS}),
            partial(_bytes, bench, jobs, "nothing", raw.drain, bench.batch, deleted),
        )
        yield compared(f"WAL per job, {kind}", pairs, "bytes", "raw", at_most=1.15)


def _bytes(bench: Bench, jobs: int, task: str, program: Callable[..., Any], *arguments: Any) -> float:
    bench.prepare(jobs, task=task)
    with processes(1, program, bench.address, *arguments) as group:
        before = bench.execute("SELECT pg_current_wal_lsn()")
        seconds_to_drain(bench, group)
        written = bench.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), CAST(:before AS pg_lsn))", before=before)
    assert bench.count("status IN ('queued', 'running')") == 0
    return float(written) / jobs
