"""What a check found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "notice", "problem"]
#: From well to bad. A problem needs a person; a notice is good to know, and may become a problem.
LEVELS: tuple[Level, ...] = ("ok", "notice", "problem")


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check."""

    name: str
    level: Level
    detail: str
    """What was found."""
    advice: str = ""
    """What to do about it; empty where all is well."""
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was measured, for programs: seconds, bytes and counts."""


def worst(levels: Iterable[Level]) -> Level:
    """The worst of these levels; "ok" without any."""
    return LEVELS[max(map(LEVELS.index, levels), default=0)]


def beyond(value: float, limits: tuple[float, float]) -> Level:
    """How bad a value is: from the first limit on a notice, from the second on a problem."""
    return "problem" if value >= limits[1] else "notice" if value >= limits[0] else "ok"


def found(name: str, well: str, *ill: tuple[Level, str, str], **numbers: float | None) -> Finding:
    """The finding of a check that has looked at several things.

    `well`: what is said if nothing is wrong. `ill`: of each thing that is, its level, what was found and what to do; those
    of the worst level come first, and an advice that is given twice is said once.
    """
    order = sorted(ill, key=lambda one: -LEVELS.index(one[0]))
    known = {key: value for key, value in numbers.items() if value is not None}
    if not order:
        return Finding(name, "ok", well, numbers=known)
    advice = "; ".join(dict.fromkeys(one[2] for one in order if one[2]))
    return Finding(name, order[0][0], "; ".join(one[1] for one in order), advice, known)


# ---- From when on something is wrong.

_KB, _MB, _GB = 10**3, 10**6, 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The limits that checks compare with, each with its reason. Times are in seconds, sizes in bytes.

    Where there are two, the first makes a notice and the second a problem.
    """

    clock_skew: float = 2.0
    """`run_at` is a producer's clock, and "due" the server's: jobs start late by the difference, or early."""
    max_wait: float | None = None
    """How long a due job may wait. None: only you know what is too long for your jobs."""
    seen: float = 60.0
    """A schedule whose time has passed for longer is not looked at. A live worker looks within a second or two, or within
    20 s where no NOTIFY reached it."""

    paused: tuple[float, float] = (0.0, 86_400.0)
    """How long a queue, a task or a key has been paused while jobs of it wait. An operator wants it so; after a day it may be forgotten. Workflows
    that have been paused for the second time are named."""
    permits_held: float = 3_600.0
    """How long all permits of a limit may be held by the same jobs while others wait for one."""

    unread: tuple[float, float] = (60.0, 600.0)
    """How long ago a job of a workflow ended, and no worker has read it. Workers look every 5 s, and read 100,000 such ends within seconds."""

    snapshot: tuple[float, float] = (300.0, 3_600.0)
    """Age of the oldest snapshot. Five minutes is a report; in an hour 1,000 jobs a second leave some 7,000,000 dead rows,
    which claims have to pass. A notice becomes a problem where dead rows are over their first limit already."""
    snapshot_xids: tuple[int, int] = (1_000_000, 20_000_000)
    """The same in transactions, for snapshots whose time is unknown: slots, standbys, sessions of other roles."""
    dead_rows: tuple[int, int] = (200_000, 5_000_000)
    """Autovacuum comes from 5,000 dead rows on, once a minute. 1,000 jobs a second leave 120,000 in that minute, which is well; with
    five million it does not keep up at any rate."""
    vacuum_age: float = 3_600.0
    """How long a table with twice the dead rows that autovacuum waits for may go without a vacuum: it comes once a minute."""
    first_vacuum: float = 600.0
    """Seconds from a queue's first job within which no vacuum need have come: a burst into new tables is no neglect."""
    bloat_ratio: tuple[float, float] = (4.0, 10.0)
    """How many times its estimated need a table or an index may have. A queue that was once long stays at its largest size."""
    bloat_bytes: tuple[int, int] = (100 * _MB, 2 * _GB)
    """Smaller waste is not worth a REINDEX or a VACUUM FULL."""
    frozen_age: tuple[float, float] = (1.25, 4.0)
    """The oldest transaction in multiples of autovacuum_freeze_max_age (200,000,000), at which autovacuum begins to freeze.
    At four times that, 800,000,000, it is far behind; the server stops at 2,100,000,000."""
    lock_wait: tuple[float, float] = (1.0, 10.0)
    """A statement of the queue's takes milliseconds. A worker's gives up after 250 ms; an application's INSERT waits."""

    notify_queue: tuple[float, float] = (0.1, 0.5)
    """The notification queue holds 8 GB. When it is full, every commit with a NOTIFY fails, and so does enqueueing."""
    connections: tuple[float, float] = (0.8, 0.95)
    """The part of the connections that is used. At 1 no worker and no web process can connect."""
    replication_lag: tuple[float, float] = (60.0, 600.0)
    """How far a standby is behind: what is lost if it takes over, and how old its numbers are."""
    retained_wal: tuple[int, int] = (1 * _GB, 20 * _GB)
    """WAL that is kept for a replication slot. It fills the disk unless max_slot_wal_keep_size is set."""

    overdue_rows: int = 10_000
    """Jobs whose time to be kept is over and that are still there. Workers delete thousands a second."""
    overdue: tuple[float, float] = (600.0, 7_200.0)
    """How long the first of these has been due for deletion. Workers look every 30 s."""
    failures: tuple[float, float] = (0.1, 0.5)
    """The part of a task's jobs that failed for good within the last hour."""
    failed_jobs: int = 10
    """Failed jobs without which that part says little."""
    timeout_near: float = 0.8
    """A task whose p99 is above this part of its timeout will soon be stopped by it."""
    timeout_far: float = 100.0
    """A timeout of more than this many times the p99 finds a hanging handler only long after it hung."""
    lease_far: float = 10.0
    """A task without a timeout whose p99 is more than this many leases: a run that hangs is not told from one that works."""
    runs: int = 20
    """Runs without which a p99 says little."""
    unknown_sample: int = 200
    """How many queued jobs of each queue and priority are looked at for tasks that no worker knows, due and later ones each."""
