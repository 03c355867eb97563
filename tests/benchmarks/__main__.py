"""The measures that keep the queue fast; not tests: nothing fails by the clock.

    python -m tests.benchmarks                  # all of them, on the embedded server, in less than ten minutes
    python -m tests.benchmarks --small          # a few seconds each, only to see that they run
    python -m tests.benchmarks --database-url postgresql://… --json figures.json drain latency

Each prints a line: measure, ours, reference, ratio, target, met. Absolute figures drift with the machine, so a target is
a ratio of two things measured in turn, several times, in one run. `counts` needs none: what it prints is exact, on every
machine and small or not, and a test (tests/integration/test_round_trips.py) pins it. All use one database, which is
named like the given one with `_measures` behind it, and is dropped afterwards.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from sa_jobqueue.embedded import embedded_url

from .archive import archive
from .counts import counts
from .dashboard import dashboard
from .depth import dead_entries, depth, future, queues
from .drain import drain, notes_drain, record, retain, unique_drain
from .enqueue import bulk, gated, one_by_one, selected, unique_enqueue
from .fairness import MEASURES as FAIRNESS
from .idle import idle
from .latency import latency
from .limits import cancel, child_drain, limits_drain
from .memory import memory
from .metrics import metrics
from .objects import objects
from .pressure import governor
from .report import Figure, line, print_figures, write_json
from .schedules import schedules
from .schema import Bench, benchmark_database
from .session import batches, record_session, session
from .steps import MEASURES as STEPS
from .tally import tally
from .tracing import injected, middleware, tracing
from .waiting import wait_for
from .wal import wal
from .workflows import MEASURES as WORKFLOWS

MEASURES: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    one.__name__: one
    for one in (
        drain,
        retain,
        record,
        unique_drain,
        notes_drain,
        limits_drain,
        *FAIRNESS,
        *WORKFLOWS,
        *STEPS,
        governor,
        metrics,
        child_drain,
        cancel,
        tally,
        schedules,
        archive,
        dashboard,
        session,
        record_session,
        batches,
        objects,
        latency,
        wait_for,
        one_by_one,
        bulk,
        selected,
        unique_enqueue,
        gated,
        depth,
        future,
        queues,
        dead_entries,
        idle,
        memory,
        middleware,
        injected,
        tracing,
        wal,
        counts,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"all, if none is named: {', '.join(MEASURES)}")
    parser.add_argument("--small", action="store_true", help="a few seconds each, only to see that they run")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="of each comparison (3)")
    parser.add_argument("--batch", type=int, default=100, metavar="N", help="jobs per claim of the raw loop (100)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--database-url", default=os.environ.get("SA_JOBQUEUE_TEST_URL"))
    given = parser.parse_args()
    if unknown := [name for name in given.measures if name not in MEASURES]:
        parser.error(f"there is no measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    url = given.database_url or embedded_url()
    figures: list[Figure] = []
    with benchmark_database(url, small=given.small, repetitions=given.repetitions, batch=given.batch) as bench:
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "postgresql": str(bench.execute("SHOW server_version")),
            "python": platform.python_version(),
            "processors": str(os.cpu_count()),
            **{name: str(bench.execute(f"SHOW {name}")) for name in _SETTINGS},
        }
        try:
            for name in given.measures or MEASURES:
                for figure in MEASURES[name](bench):
                    print(line(figure), flush=True)
                    figures.append(figure)
        finally:
            print_figures(figures, ", ".join(f"{name} {value}" for name, value in about.items()))
            if given.json is not None:
                write_json(figures, given.json, about)


_SETTINGS = ("shared_buffers", "synchronous_commit", "fsync", "jit")

if __name__ == "__main__":
    main()
