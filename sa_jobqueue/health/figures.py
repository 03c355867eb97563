"""What sums of the table `stat` say: rates per minute, means, and quantiles of how long jobs ran and waited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..histogram import BUCKETS, quantile
from ..lifecycle import COUNTED

__all__ = ["ALWAYS", "ENDS", "QUANTILES", "Figures", "named"]

#: By name, the share of the durations that a quantile is for.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
#: Outcomes that are named in any case.
ALWAYS = ("completed", "retried", "failed")
#: The outcomes after which a job is finished.
ENDS = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Figures:
    """What jobs came to within some seconds."""

    counts: dict[str, int]
    seconds: float
    run_seconds: float
    wait_seconds: float
    runs: Sequence[int]
    waits: Sequence[int]

    @classmethod
    def of(cls, rows: Iterable[Any], seconds: float) -> Figures:
        """The sums of these rows of `sum_stats` together, which cover this number of seconds."""
        rows = list(rows)
        return cls(
            {name: sum(getattr(row, name) for row in rows) for name in COUNTED},
            seconds,
            sum(row.run_seconds for row in rows),
            sum(row.wait_seconds for row in rows),
            [sum(row.runs[number] for row in rows) for number in range(BUCKETS)],
            [sum(row.waits[number] for row in rows) for number in range(BUCKETS)],
        )

    @property
    def ended(self) -> int:
        """Jobs that completed, failed or were cancelled."""
        return sum(self.counts[name] for name in ENDS)

    def per_minute(self, *names: str) -> float:
        """How many of these outcomes there were in a minute; without names, how many jobs ended."""
        number = sum(self.counts[name] for name in names) if names else self.ended
        return number * 60 / self.seconds if self.seconds > 0 else 0.0

    def run(self, name: str) -> float | None:
        """Seconds that handlers took: "mean", or a name of `QUANTILES`. None: there was none."""
        return _of(self.runs, self.run_seconds, name)

    def wait(self, name: str) -> float | None:
        """Seconds that jobs had been due when their handlers were called, likewise."""
        return _of(self.waits, self.wait_seconds, name)


def named(figures: Sequence[Figures]) -> list[str]:
    """The outcomes to show of these: the usual ones, and each of the others that happened."""
    return [name for name in COUNTED if name in ALWAYS or any(one.counts[name] for one in figures)]


def _of(counts: Sequence[int], total: float, name: str) -> float | None:
    if name == "mean":
        number = sum(counts)
        return total / number if number else None
    return quantile(counts, QUANTILES[name])
