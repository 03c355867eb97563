"""A schedule as a plain Python object that obeys the same rules as the row, by lists of all its ticks.

The machine of `tests/properties` drives a real row alongside, and compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

#: A tick was not missed if a worker looks within this time.
ON_TIME = timedelta(seconds=60)
#: A tick that waits for the end of a job is looked at again after this time.
AGAIN = timedelta(seconds=1)


class Plan(NamedTuple):
    """What is to be done about the ticks by now."""

    first: datetime
    """The first tick about which nothing had been done."""
    jobs: list[tuple[datetime, int]]
    """Ticks that become jobs, with the number that each stands for."""
    left_out: int
    after: datetime
    """The first tick that is still to come."""


@dataclass
class ModelSchedule:
    """What the row holds."""

    interval: timedelta
    counts_from: datetime
    due_at: datetime
    missed: str = "once"
    catch_up: timedelta | None = None
    overlap: str = "allow"
    jitter: timedelta = timedelta(0)
    pause_after: int | None = None
    next_at: datetime | None = None
    last_tick_at: datetime | None = None
    waiting_since: datetime | None = None
    left_out: int = 0
    paused_by: str | None = None

    def is_due(self, now: datetime) -> bool:
        return self.paused_by is None and self.due_at <= now

    def plan(self, now: datetime) -> Plan:
        at = first = self.next_at or self.counts_from + self.interval
        ticks: list[datetime] = []
        while at <= now:
            ticks.append(at)
            at += self.interval
        waits = self.waiting_since is not None
        young = [one for one in ticks if waits or self.catch_up is None or one >= now - self.catch_up]
        jobs: list[tuple[datetime, int]] = []
        if self.missed == "all" and self.overlap == "allow" and not waits:
            jobs = [(one, 1) for one in young]
        elif self.missed == "skip" and not waits:
            jobs = [(one, 1) for one in young[-1:] if now - one <= ON_TIME]
        elif young:
            jobs = [(young[-1], len(young))]
        return Plan(first, jobs, len(ticks) - sum(number for _, number in jobs), at)

    def step(self, plan: Plan, now: datetime, *, live: bool) -> tuple[list[tuple[datetime, int]], bool]:
        """Move on; the ticks that become jobs, and whether the live jobs are cancelled before. `live`: there are some."""
        jobs, clashes = plan.jobs, live and bool(plan.jobs) and self.overlap != "allow"
        if clashes and self.overlap == "queue_one":
            self.next_at, self.due_at = plan.first, now + AGAIN
            self.waiting_since = self.waiting_since or plan.first
            return [], False
        if clashes and self.overlap == "skip":
            jobs = []
        self.next_at = self.due_at = plan.after
        self.waiting_since = None
        self.left_out += plan.left_out + sum(number for _, number in plan.jobs) - sum(number for _, number in jobs)
        if jobs:
            self.last_tick_at = jobs[-1][0]
        return jobs, clashes and self.overlap == "cancel_running"

    def count_from(self, now: datetime) -> None:
        """Its rule has changed, or its pause has ended."""
        self.counts_from, self.due_at = now, now
        self.next_at = self.waiting_since = None

    def turn_back(self, by: timedelta) -> None:
        """Time has passed: all its times are that much earlier."""
        self.counts_from -= by
        self.due_at -= by
        for name in ("next_at", "last_tick_at", "waiting_since"):
            if (time := getattr(self, name)) is not None:
                setattr(self, name, time - by)
