"""Two tenants with and without keys: how long the jobs of a small one wait beside the backlog of a large one, as a picture.

    python -m tests.benchmarks.tenants --json tenants.json
    python -m tests.benchmarks.tenants --json tenants.json --small      # seconds, only to see that it runs; draws nothing

Needs matplotlib (`pip install --group bench`). The picture is on the page "Concurrency limits, rate limits and fairness".
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue
from sa_jobqueue.embedded import embedded_url
from sa_jobqueue.trials.bench.processes import processes

from .peers.results import machine
from .pictures import FOLDER, OTHER, OURS, STYLE, save
from .schema import SCHEMA, Bench, benchmark_database
from .tasks import nap
from .workers import serve

#: Slots of the one worker, and the seconds between two jobs of the small tenant.
SLOTS, PAUSE = 8, 0.1


def waits(bench: Bench, *, keyed: bool) -> list[dict[str, float]]:
    """Of each job of the small tenant: when it was enqueued, in seconds after the large tenant's jobs, and the seconds until its start."""
    jobs, seconds = (400, 2.0) if bench.small else (4_000, 10.0)
    bench.prepare(0)
    with processes(1, serve, bench.address, {"default": SLOTS}) as worker:
        worker.go()
        bench.wait_for(f"SELECT count(*) FROM {SCHEMA}.worker")
        bench.fill(jobs, task="nap", key="'large'" if keyed else "NULL")
        began = time.monotonic()
        small = nap.options(key="small") if keyed else nap
        ids: list[int] = []
        with Session(bench.engine, expire_on_commit=False) as session:
            while time.monotonic() - began < seconds:
                job = enqueue(small, 0)
                session.add(job)
                session.commit()
                ids.append(job.id)
                time.sleep(PAUSE)
        bench.wait_for(f"SELECT NOT EXISTS (SELECT FROM {SCHEMA}.job WHERE status IN ('queued', 'running'))")
        worker.stop()
    with bench.engine.connect() as connection:
        rows = connection.execute(
            text(
                f"SELECT extract(epoch FROM created_at - (SELECT min(created_at) FROM {SCHEMA}.job))::float8, "
                f"extract(epoch FROM claimed_at - created_at)::float8 FROM {SCHEMA}.job WHERE id = ANY (:ids) ORDER BY id"
            ),
            {"ids": ids},
        )
        return [{"at": at, "waited": waited} for at, waited in rows]


def measure(bench: Bench) -> dict[str, Any]:
    """Both, and what they were measured on."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "small": bench.small,
        "machine": machine(),
        "event_loop": "uvloop" if find_spec("uvloop") else "asyncio",
        "postgresql": str(bench.execute("SHOW server_version")),
        "without": waits(bench, keyed=False),
        "with": waits(bench, keyed=True),
    }


def draw(measured: dict[str, Any], folder: Path) -> Path:
    """Waiting time against the time of enqueueing."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE | {"lines.markersize": 3}):
        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for name, title, color in (("without", "without keys", OTHER), ("with", "with keys", OURS)):
            points = measured[name]
            # The claim's time is its transaction's start, which may be a little before the commit of the job.
            seconds = [max(one["waited"], 0.001) for one in points]
            axes.plot([one["at"] for one in points], seconds, color=color, label=title)
        axes.set_xlabel("enqueued, seconds after the large tenant's jobs")
        axes.set_ylabel("wait of the small tenant's job, s")
        axes.set_yscale("log")
        axes.set_xlim(left=0)
        axes.legend()
        return save(figure, folder / "tenants.svg")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.tenants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the waits are written")
    parser.add_argument("--small", action="store_true", help="seconds, only to see that it runs; draws nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the SVG file goes")
    parser.add_argument("--database-url", default=os.environ.get("SA_JOBQUEUE_TEST_URL"))
    given = parser.parse_args()
    url = given.database_url or embedded_url()
    with benchmark_database(url, small=given.small) as bench:
        measured = measure(bench)
    given.json.write_text(json.dumps(measured, indent=2) + "\n")
    if not given.small:
        draw(measured, given.folder)


if __name__ == "__main__":
    main()
