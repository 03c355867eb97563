"""The charges of keys that share the time of a queue: the seconds that their jobs have used slots of this worker.

A claim starts jobs of the key with the lowest charge. Charges are not in rows: each worker divides its own slots, so all workers together
divide their slots equally, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

#: A mean follows the last jobs: each new job counts for an eighth.
_SHARE_OF_MEAN = 1 / 8
#: The most keys with charges, and the most charges that a claim gets: the highest charges.
_MOST_KEYS, _MOST_TOLD = 2_000, 1_000


@dataclass(slots=True)
class _Key:
    used: float
    """The seconds that the key's ended jobs have taken, divided by its weight."""
    weight: int = 1
    mean: float | None = None
    """The mean seconds of the key's jobs; None before the first job has ended."""
    running: dict[int, float] = field(default_factory=dict)
    """The start times of its running jobs, by id."""

    def so_far(self, now: float) -> float:
        return self.used + sum(now - at for at in self.running.values()) / self.weight

    def expected(self, now: float, mean: float) -> float:
        """The charge with the expected remaining time of the running jobs."""
        mean = self.mean if self.mean is not None else mean
        return self.used + sum(max(now - at, mean) for at in self.running.values()) / self.weight


class TimeShares:
    """The charges of the keys of one queue, by the clock that gives each `now`. Only for the claimer's thread.

    A key without jobs does not save up time: its charge is at least `_level`, the lowest charge of the keys with running jobs.
    """

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}
        self._level = 0.0
        self._mean = 0.0
        self._waiting: dict[int, str] = {}
        """The keys of the claimed jobs that do not have slots yet, by id."""
        self._handed: dict[int, str] = {}

    def start(self, jobs: Sequence[tuple[int, str, int]], now: float) -> None:
        """Charge the keys for these jobs, (id, key, weight), from now on."""
        for job_id, name, weight in jobs:
            key = self._keys.setdefault(name, _Key(self._level))
            if not key.running:
                key.used = max(key.used, self._level)
            key.weight = weight
            key.running[job_id] = now
            self._waiting[job_id] = name
        if not jobs and not self._handed and not self._waiting:
            self._keys.clear()  # no job runs and no job is due: delete all charges
        self._forget(now)

    def handed_over(self) -> None:
        """Note that all jobs claimed so far have slots, or ended without a slot."""
        self._handed |= self._waiting
        self._waiting = {}

    def end(self, runs: Callable[[int], bool], now: float) -> None:
        """Stop charging keys for jobs that no longer run."""
        for job_id, name in [item for item in self._handed.items() if not runs(item[0])]:
            del self._handed[job_id]
            key = self._keys[name]
            took = now - key.running.pop(job_id)
            key.used += took / key.weight
            key.mean = took if key.mean is None else key.mean + (took - key.mean) * _SHARE_OF_MEAN
            self._mean += (took - self._mean) * _SHARE_OF_MEAN

    def charges(self, now: float) -> tuple[float, dict[str, tuple[float, float]]]:
        """The seconds that a job takes, and by key the seconds that it is charged above the level and that a job of it takes."""
        charged = {
            name: (key.expected(now, self._mean) - self._level, self._mean if key.mean is None else key.mean)
            for name, key in self._keys.items()
        }
        most = sorted(charged, key=charged.__getitem__, reverse=True)[:_MOST_TOLD]
        return self._mean, {name: charged[name] for name in most}

    def _forget(self, now: float) -> None:
        busy = [key.so_far(now) for key in self._keys.values() if key.running]
        self._level = max(self._level, min(busy, default=0.0))
        idle = [name for name, key in self._keys.items() if not key.running]
        for name in idle:
            if self._keys[name].used <= self._level:
                del self._keys[name]
        if len(self._keys) > _MOST_KEYS:
            left = sorted((name for name in idle if name in self._keys), key=lambda name: self._keys[name].used)
            for name in left[: len(self._keys) - _MOST_KEYS // 2]:
                del self._keys[name]


def charges_said(shares: dict[str, TimeShares], now: float) -> str | None:
    """The charges of these queues as JSON for a claim; None: no queue shares its time."""
    return json.dumps({queue: share.charges(now) for queue, share in shares.items()}) if shares else None
