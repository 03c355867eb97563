"""Findings of checks, and the thresholds with which checks compare."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from ..util.log import escaped

Level: TypeAlias = Literal["ok", "notice", "problem"]
#: From best to worst. A problem needs a person; a notice may become a problem.
LEVELS: tuple[Level, ...] = ("ok", "notice", "problem")
#: A fault that a check found: its level, a description, and what to do about it.
Fault: TypeAlias = tuple[Level, str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    name: str
    level: Level
    detail: str
    """A description of what was found."""
    advice: str = ""
    """What to do about it; empty if there is nothing to do."""
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    """Measured seconds, bytes and counts, for programs."""
    about: Sequence[tuple[str, str]] = ()
    """The things that it concerns, for links: "queue", "task", "schedule" or "workflow", and the name."""


def worst(levels: Iterable[Level]) -> Level:
    """The worst of these levels; "ok" without any."""
    return LEVELS[max(map(LEVELS.index, levels), default=0)]


def beyond(value: float, limits: tuple[float, float]) -> Level:
    """The level of a value: a notice from the first limit on, a problem from the second limit on."""
    return "problem" if value >= limits[1] else "notice" if value >= limits[0] else "ok"


def found(
    name: str, well: str, *faults: Fault, about: Sequence[tuple[str, str]] = (), **numbers: float | None
) -> Finding:
    """The finding of a check of several things.

    `well`: the description if there are no faults. The worst faults come first, and repeated advice is given once.
    """
    order = sorted(faults, key=lambda fault: -LEVELS.index(fault[0]))
    known = {key: value for key, value in numbers.items() if value is not None}
    if not order:
        return Finding(name, "ok", well, numbers=known)
    advice = "; ".join(dict.fromkeys(advice for *_, advice in order if advice))
    return Finding(name, order[0][0], "; ".join(detail for _, detail, _ in order), advice, known, about)


# ---- Findings that an operator has acknowledged until a time.

#: How long a finding can be acknowledged.
SPANS = {"1h": timedelta(hours=1), "8h": timedelta(hours=8), "24h": timedelta(days=1), "7d": timedelta(days=7)}
#: Text in brackets, and the numbers of things: ids, and names that are numbers, such as keys with a tenant's id.
_DETAILS, _NUMBERED = re.compile(r"\([^()]*\)"), re.compile(r"\b(?:process|jobs?|workflows?|queue|key) (\d+(?:, \d+)*)")
_BEFORE_DETAILS = re.compile(r"(?<!\S)\d+(?= \()")
#: What varies while a finding is the same: measures, and the words that go with them.
_MEASURES = re.compile(
    r"(?<!\S)(?:\d[\d.,:]*[smhd%+]?(?! more)(?: (?:ms|s|bytes|[kMG]B|(?:job|row|key|outcome)s?))?|(?:job|key)s?(?= \d))(?=[\s,;:]|$)"
)
#: The most characters of an acknowledged finding that are shown.
_TOLD = 300


class Acknowledged(NamedTuple):
    """An acknowledgement of a finding. `was`: the earlier finding, if it got worse since; empty: the acknowledgement holds."""

    who: str
    until: datetime
    was: str = ""


def named(finding: Finding) -> str:
    """The things that the finding is about, a line for each."""
    return "\n".join(f"{kind} {escaped(name)}".strip() for kind, name in finding.about)


def acknowledged(findings: Iterable[Finding], marks: Sequence[Any]) -> dict[str, Acknowledged]:
    """The acknowledgements that have not expired, by the name of the finding. A finding got worse if it has a higher level, or concerns other
    things.

    `marks`: rows of `newest_marks`, the last first.
    """
    newest = {mark["check"]: mark for mark in reversed(marks)}
    found: dict[str, Acknowledged] = {}
    for finding in findings:
        mark = newest.get(finding.name)
        if mark is None or mark["action"] != "acknowledge" or finding.level == "ok":
            continue
        until = mark["at"] + SPANS.get(mark["for"], timedelta(0))
        if mark["now"] >= until:
            continue
        about = mark["about"].splitlines() or named(finding).splitlines()  # older marks do not have the names
        was = ""
        if mark["level"] not in LEVELS[LEVELS.index(finding.level) :]:
            was = f"a {mark['level']}"
        elif not (
            _subjects(finding.detail) <= _subjects(mark["detail"]) and {*named(finding).splitlines()} <= {*about}
        ):
            was = f"“{mark['detail'][:_TOLD]}{'…' if len(mark['detail']) > _TOLD else ''}”"
        found[finding.name] = Acknowledged(mark["who"], until, was)
    return found


def _subjects(detail: str) -> set[str]:
    """The words of a finding but its measures."""
    text = _DETAILS.sub("", detail)
    numbers = (number for listed in _NUMBERED.findall(text) for number in listed.split(", "))
    return {*numbers, *_BEFORE_DETAILS.findall(detail), *re.findall(r"[^\s,;]+", _MEASURES.sub(" ", text))}


# ---- Thresholds.

_KB, _MB, _GB = 10**3, 10**6, 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The limits that checks compare with, each with its reason. Times are in seconds, sizes in bytes.

    Of two limits, the first makes a notice and the second a problem.
    """

    clock_skew: float = 2.0
    """Producers set `run_at` by their clock, and the server decides what is due by its own: jobs start late or early by the difference."""
    max_wait: float | None = None
    """How long a due job may wait. None: only you know how long is too long for your jobs."""
    seen: float = 60.0
    """How long the time of a schedule may have passed. A live worker serves it within a second or two, or within 20 s if no NOTIFY
    reached the worker."""

    paused: tuple[float, float] = (0.0, 86_400.0)
    """How long a queue, a task or a key may be paused while its jobs wait. An operator wanted the pause, but may have forgotten it after a
    day. Workflows that have been paused longer than the second limit are listed."""
    permits_held: float = 3_600.0
    """How long the same jobs may hold all permits of a limit while other jobs wait."""

    unread: tuple[float, float] = (60.0, 600.0)
    """How long a job's end may be unread by its workflow. Workers check every 5 s, and read 100,000 ends within seconds."""

    unanswered: tuple[float, float] = (86_400.0, 604_800.0)
    """Seconds that a question may wait for the answer of a person: a notice, and a problem. A wait for another signal, without a timeout, is a
    notice after the longer time."""

    snapshot: tuple[float, float] = (300.0, 3_600.0)
    """Age of the oldest snapshot. Five minutes is a report; in an hour 1,000 jobs a second leave some 7,000,000 dead rows,
    which claims have to pass. A notice becomes a problem where dead rows are over their first limit already."""
    snapshot_xids: tuple[int, int] = (1_000_000, 20_000_000)
    """Age of the oldest snapshot in transactions, if its time is unknown: slots, standbys, sessions of other roles."""
    dead_rows: tuple[int, int] = (200_000, 5_000_000)
    """Autovacuum runs from 5,000 dead rows on, once a minute. 1,000 jobs a second leave 120,000 in that minute, which is normal; with
    five million it does not keep up."""
    vacuum_age: float = 3_600.0
    """How long a table with twice the dead rows of autovacuum's threshold may go without a vacuum, which runs once a minute."""
    first_vacuum: float = 600.0
    """Seconds from a queue's first job within which a vacuum is not yet expected: a burst into new tables is normal."""
    bloat_ratio: tuple[float, float] = (4.0, 10.0)
    """The size of a table or an index in multiples of its estimated need. Tables of a queue that was once long stay at their largest size."""
    bloat_bytes: tuple[int, int] = (100 * _MB, 2 * _GB)
    """Less waste is not worth a REINDEX or a VACUUM FULL."""
    frozen_age: tuple[float, float] = (1.25, 4.0)
    """The oldest transaction in multiples of autovacuum_freeze_max_age (200,000,000), at which autovacuum begins to freeze.
    At four times that, 800,000,000, it is far behind; the server stops at 2,100,000,000."""
    lock_wait: tuple[float, float] = (1.0, 10.0)
    """The queue's statements take milliseconds. Those of workers give up after 250 ms; an application's INSERT waits."""

    notify_queue: tuple[float, float] = (0.1, 0.5)
    """The notification queue holds 8 GB. When it is full, every commit with a NOTIFY fails, and so does enqueueing."""
    connections: tuple[float, float] = (0.8, 0.95)
    """The used share of the connections. At 1 no worker and no web process can connect."""
    replication_lag: tuple[float, float] = (60.0, 600.0)
    """How far a standby is behind: the loss if it takes over, and the age of its numbers."""
    retained_wal: tuple[int, int] = (1 * _GB, 20 * _GB)
    """WAL that is kept for a replication slot. It fills the disk unless max_slot_wal_keep_size is set."""

    overdue_rows: int = 10_000
    """Jobs whose retention is over, but that are not deleted. Workers delete thousands a second."""
    overdue: tuple[float, float] = (600.0, 7_200.0)
    """How long the first of these has been due for deletion. Workers delete every 30 s."""
    failures: tuple[float, float] = (0.1, 0.5)
    """The share of a task's jobs that failed for good within the last hour."""
    failed_jobs: int = 10
    """The fewest failed jobs for which that share is meaningful."""
    timeout_near: float = 0.8
    """A task whose p99 exceeds this share of its timeout may soon be stopped by it."""
    timeout_far: float = 100.0
    """A timeout of more than this many times the p99 stops a hanging handler very late."""
    lease_far: float = 10.0
    """A task without a timeout whose p99 is more than this many leases: a hanging run cannot be told from a working run."""
    runs: int = 20
    """The fewest runs for which a p99 is meaningful."""
    unknown_sample: int = 200
    """The queued jobs of each queue and priority that are searched for unknown tasks; as many due jobs as later ones."""
