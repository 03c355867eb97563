"""What a race gave: rows, the figures that have a target, and both as JSON."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.race import Contestant


@dataclass(frozen=True)
class Row:
    """One contestant's result; rates are jobs per second, one for each round."""

    peer: str
    broker: str
    way: str
    handler: str
    processes: int
    jobs: int
    settings: str
    versions: dict[str, str]
    bulk: str
    rates: list[float]
    enqueued: list[float]
    wal: list[float] = field(default_factory=list)
    """Bytes of write-ahead log per job."""

    @property
    def wal_a_job(self) -> float:
        return statistics.median(self.wal) if self.wal else 0.0

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def enqueue_rate(self) -> float:
        return statistics.median(self.enqueued)

    @property
    def title(self) -> str:
        """The peer, and its way where the name of the handler's kind does not say it."""
        return self.peer if self.way == self.handler else f"{self.peer}, {self.way}"

    @classmethod
    def of(cls, contestant: Contestant) -> Row:
        peer = contestant.runner.peer
        way = peer.ways[contestant.way]
        return cls(
            peer.name, peer.broker, contestant.way, way.handler, contestant.processes, contestant.jobs, way.settings,
            contestant.runner.versions, peer.bulk, contestant.rates, contestant.enqueued, contestant.wal,
        )  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A ratio to a peer that the project wants to reach."""

    peer: str
    handler: str
    processes: int
    times: float


TARGETS = (
    Target("PgQueuer", "async", 1, 2.1),
    Target("PgQueuer", "async", 2, 2.5),
    Target("Dramatiq on Redis", "sync", 1, 6.0),
    Target("DBOS", "steps", 1, 3.0),
)

OURS = "sa_jobqueue"


@dataclass(frozen=True)
class Figure:
    """One line of the result. Where a peer has several ways, the reference is its fastest."""

    measure: str
    ours: float
    reference: float
    ratio: float
    target: float
    met: bool


def figures(rows: Iterable[Row]) -> list[Figure]:
    """The targets whose two sides were measured."""
    measured = list(rows)
    found = []
    for target in TARGETS:
        ours = _best(measured, OURS, target)
        reference = _best(measured, target.peer, target)
        if ours is None or reference is None:
            continue
        ratio = ours.rate / reference.rate
        handler = {"async": "async no-op", "sync": "sync no-op on threads", "steps": "jobs of ten steps"}[
            target.handler
        ]
        measure = f"drain, {handler}, {processes(target.processes)} : {reference.title}"
        found.append(Figure(measure, ours.rate, reference.rate, ratio, target.times, ratio >= target.times))
    return found


def processes(number: int) -> str:
    """In words."""
    return "1 process" if number == 1 else f"{number} processes"


def _best(rows: Iterable[Row], peer: str, target: Target) -> Row | None:
    wanted = (peer, target.handler, target.processes)
    candidates = [row for row in rows if (row.peer, row.handler, row.processes) == wanted and row.rates]
    return max(candidates, key=lambda row: row.rate, default=None)


def to_json(rows: list[Row], *, brokers: dict[str, dict[str, str]], small: bool) -> dict[str, Any]:
    """All that is needed to write the page, and to look closer later."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "small": small,
        "machine": machine(),
        "brokers": brokers,
        "rows": [asdict(row) for row in rows],
        "figures": [asdict(figure) for figure in figures(rows)],
    }


def machine() -> dict[str, str]:
    """Processor, cores, memory, system, Python."""
    found = {"cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)}
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if cpuinfo.exists():
        models = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        found["processor"] = models[0] if models else platform.machine()
    if meminfo.exists():
        kilobytes = int(meminfo.read_text().split()[1])
        found["memory"] = f"{kilobytes / 2**20:.0f} GiB"
    return found | {"system": platform.system(), "python": platform.python_version()}
