"""Moving finished jobs to the archive: rows per second over one connection, as a worker moves them, beside deleting them.

And that the archive costs a job nothing that is not archived: what a plain drain writes is in `wal` and `counts`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial

from sqlalchemy import create_engine

from sa_jobqueue.sql.store import default_store
from sa_jobqueue.worker.connections.service import Connector

from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench

#: As many as a worker takes at once.
_PAGE = 1_000


def archive(bench: Bench) -> Iterator[Figure]:
    """200,000 jobs, with arguments and a result, whose time is over."""
    jobs = 5_000 if bench.small else 200_000
    with bench.engine.begin() as connection:
        default_store.make_months_ahead(connection)
    pairs = list(interleaved(bench.repeat, partial(_rate, bench, jobs, True), partial(_rate, bench, jobs, False)))
    moved = statistics.median(ours for ours, _ in pairs)
    fsync = bench.execute("SHOW fsync")
    yield Figure(f"{jobs:,} jobs moved to the archive, one connection, fsync {fsync}", moved, "jobs/s", at_least=20_000)
    yield compared(f"{jobs:,} jobs moved to the archive : deleted", pairs, "jobs/s", "deleted")
    bench.execute(f"TRUNCATE {SCHEMA}.archived_job, {SCHEMA}.archived_task")


def _rate(bench: Bench, jobs: int, moves: bool) -> float:
    bench.empty()
    bench.execute(f"TRUNCATE {SCHEMA}.archived_job, {SCHEMA}.archived_task")
    if moves:
        bench.execute(f"INSERT INTO {SCHEMA}.archived_task (name) VALUES ('nothing')")
    bench.execute(
        f"INSERT INTO {SCHEMA}.job (task, status, args, meta, result, claims, attempt, claim_token, worker, claimed_at, finished_at, purge_at) "
        "SELECT 'nothing', 'completed', jsonb_build_object('n', n), jsonb_build_object('tags', ARRAY['a']), to_jsonb(n), 1, 1, n, "
        "'a worker', now(), now(), now() - (:jobs - n) * interval '1 ms' FROM generate_series(1, :jobs) AS n",
        jobs=jobs,
    )
    bench.settle()
    engine = create_engine(bench.url)
    connector = Connector(engine, lease=60)
    connection = connector.connect()
    gone, after = 0, float("-inf")
    begun = time.perf_counter()
    while gone < jobs:
        with connector.begin(connection):
            page = default_store.prune(connection, limit=_PAGE, after=after, seconds=7.5, archive=moves)
        assert page.jobs, f"only {gone} of {jobs} jobs went"
        gone, after = gone + page.jobs, page.reached
    seconds = time.perf_counter() - begun
    connection.close()
    engine.dispose()
    assert bench.execute(f"SELECT count(*) FROM {SCHEMA}.archived_job") == (jobs if moves else 0)
    assert bench.count() == 0
    return jobs / seconds
