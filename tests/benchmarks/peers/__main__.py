"""Drains of ours and of our peers, side by side: each peer with its newest release, in a virtual environment of its own.

    python -m tests.benchmarks.peers                        # all, about half an hour
    python -m tests.benchmarks.peers --small                # a minute, only to see that they run
    python -m tests.benchmarks.peers ours on_pgqueuer --rounds 7 --json results.json
    python -m tests.benchmarks.peers --from results.json --write docs/explanation/benchmarks.md

The contestants take turns, round after round, and each one's median counts. PostgreSQL is the embedded one or
`--database-url`, the same for all; the database `sa_jobqueue_peers` is created there for each drain. Redis is Debian's
`redis-server` (`apt-get install redis-server`), started for the race; without it the peers that need it are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.peers.environments import RUNNERS, interpreter, too_old
from tests.benchmarks.peers.page import write
from tests.benchmarks.peers.race import Contestant, Runner, Stuck, drain
from tests.benchmarks.peers.results import Row, figures, to_json
from tests.benchmarks.peers.servers import Postgres, Redis, redis
from tests.support.commands import ROOT

NAMES = ["ours", *sorted(path.stem for path in RUNNERS.glob("on_*.py"))]
PROCESSES = (1, 2)


def contestants(runners: list[Runner], *, small: bool, scale: float, given: str | None = None) -> list[Contestant]:
    """Every way of every runner, or this one, with one and with two processes."""
    return [
        Contestant(
            runner, way, processes, jobs=max(100, round((kind.jobs or runner.peer.jobs) * (0.01 if small else scale)))
        )
        for runner in runners
        for way, kind in runner.peer.ways.items()
        for processes in PROCESSES
        if given in {None, way}
    ]


def race(entered: list[Contestant], brokers: dict[str, Postgres | Redis], *, rounds: int, console: Console) -> None:
    """Every contestant once in each round, every second round backwards, so that drift affects all equally."""
    for number in range(rounds):
        for contestant in entered if number % 2 == 0 else reversed(entered):
            peer = contestant.runner.peer
            began = time.monotonic()
            drain(contestant, brokers[peer.broker])
            console.print(
                f"round {number + 1}: {peer.name}, {contestant.way}, {contestant.processes}: "
                f"{contestant.rates[-1]:,.0f} jobs/s ({time.monotonic() - began:.0f} s)"
            )


def tables(rows: list[Row]) -> tuple[Table, Table]:
    """The figures with a target, and all rates."""
    judged = Table("measure", "ours", "reference", "ratio", "target", "met")
    for figure in figures(rows):
        judged.add_row(
            figure.measure, f"{figure.ours:,.0f} jobs/s", f"{figure.reference:,.0f} jobs/s", f"{figure.ratio:.2f}",
            f"≥ {figure.target:g}", "yes" if figure.met else "no",
        )  # fmt: skip
    rates = Table("", "handler", "processes", "jobs", "jobs/s", "lowest", "highest", "enqueued/s", "WAL bytes/job")
    for row in sorted(rows, key=lambda row: (row.handler, row.processes, -row.rate)):
        rates.add_row(
            row.title, row.handler, str(row.processes), f"{row.jobs:,}", f"{row.rate:,.0f}", f"{min(row.rates):,.0f}",
            f"{max(row.rates):,.0f}", f"{row.enqueue_rate:,.0f}", f"{row.wal_a_job:,.0f}",
        )  # fmt: skip
    return judged, rates


def run(given: argparse.Namespace, console: Console) -> dict[str, object]:
    """Install, race, print; return the results as JSON has them."""
    with ExitStack() as stack:
        names = given.peers or NAMES
        for name in names:
            if wanted := too_old(name):
                console.print(f"{name} left out: it needs Python {wanted}")
        runners = [
            Runner.described(name, interpreter(name, given.environments, install=not given.as_installed))
            for name in names
            if not too_old(name)
        ]
        postgres = Postgres.at(given.database_url)
        stack.callback(postgres.drop)
        brokers: dict[str, Postgres | Redis] = {"postgresql": postgres}
        if any(runner.peer.broker == "redis" for runner in runners):
            server = stack.enter_context(redis())
            if server is None:
                left_out = ", ".join(runner.peer.name for runner in runners if runner.peer.broker == "redis")
                console.print(f"no redis-server here: {left_out} left out (apt-get install redis-server)")
            else:
                brokers["redis"] = server
        runners = [runner for runner in runners if runner.peer.broker in brokers]
        entered = contestants(runners, small=given.small, scale=given.scale, given=given.way)
        race(entered, brokers, rounds=1 if given.small else given.rounds, console=console)
        rows = [Row.of(contestant) for contestant in entered]
        about = {name: broker.about() for name, broker in brokers.items()}
    for table in tables(rows):
        table.title = "a small run: its figures mean nothing" if given.small else None
        console.print(table)
    return to_json(rows, brokers=about, small=given.small)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", choices=[*NAMES, []], help="all, if none is named")
    parser.add_argument("--small", action="store_true", help="one round of few jobs, only to see that they run")
    parser.add_argument("--rounds", type=int, default=5, help="how often each drains (default: 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the usual number of jobs by this")
    parser.add_argument("--way", help="only this way of each, `steps` for example")
    parser.add_argument("--database-url", default=os.environ.get("SA_JOBQUEUE_TEST_URL"))
    parser.add_argument(
        "--environments", type=Path, default=ROOT / ".nox" / "peers", help="where the peers are installed"
    )
    parser.add_argument("--as-installed", action="store_true", help="do not look for newer releases")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="measure nothing, read results")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the results into this page")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # the servers and workers end too
    try:
        results = (
            json.loads(given.source.read_text())
            if given.source
            else run(given, Console(width=max(120, Console().width)))
        )
    except Stuck as problem:
        sys.exit(str(problem))
    if given.json:
        given.json.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    if given.write:
        write(given.write, results)


if __name__ == "__main__":
    main()
