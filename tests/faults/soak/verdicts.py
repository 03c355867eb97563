"""What the soak promises, as functions of what was seen; nothing here looks at a clock or a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LEVEL = 1.15
"""The largest size in the last third of the run, as a multiple of the largest in the second: growth without end would be 1.5."""
FLAT = 1.10
"""The same for the memory of a worker."""
UNSTEADY = 60.0
"""Seconds from the beginning in which a due job may be older."""
OLDEST_DUE = 5.0
"""Seconds that a due job may wait to be claimed.

A job that was not announced is seen by the next poll, after a second at most. One that became visible behind a resume
point is found by the next sweep, after 0.8 seconds at most. One that was claimed ahead of a free slot goes back after two. At
two thirds of the capacity there is room for all that is due, so only these wait; the rest of the limit is for a busy
host. A longer wait means a backlog, through the whole of which jobs of low priority would wait."""
SLOWEST = 5.0
"""Seconds that a claimed job may take beside its handler's own time: two until it goes back unstarted, and the rest as above."""
BEHIND = 0.97
"""The least share of the wanted load that must have been enqueued; with less, the run shows nothing."""


@dataclass(frozen=True)
class Sample:
    """What was seen at one time; `at` is in seconds from the beginning of the load. Sizes are in bytes."""

    at: float
    enqueued: int
    finished: int
    most_due: int
    """The most jobs that were due and not claimed, at any look since the sample before."""
    oldest_due: float
    """The longest wait of one of them, in seconds."""
    oldest_running: float
    """The same for the time since its claim of a running one."""
    rows: int
    heap: int
    toast: int
    indexes: int
    dead: int
    oldest_snapshot: float
    """Seconds that the oldest snapshot on the server had been held."""
    slowness: float
    """Processor time that a fixed computation took since the sample before, as a multiple of what it took while the capacity
    was measured; medians. Above 1 the machine has become slower, whatever the queue does."""
    flush: float
    """The longest time until a page was on the disk, of one that is written each second; in seconds."""
    memory: dict[int, int]
    """What each worker process had resident, by its pid."""
    complaints: int
    """Lines in the workers' log that should not be there."""
    archive: int = 0
    """The archive, with its indexes: all that ever finished is there, so it grows."""

    @property
    def table(self) -> int:
        return self.heap + self.toast


@dataclass(frozen=True)
class Seen:
    """All that is judged."""

    samples: Sequence[Sample]
    rate: float
    """Jobs per second that should have been enqueued."""
    longest: float
    """Seconds that a handler takes at most."""
    miscounts: list[str] = field(default_factory=list)
    """Jobs that did not come to the end they should, or left something else behind."""
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """A promise, what was seen of it, and whether it was kept."""

    promise: str
    seen: str
    kept: bool


def judge(seen: Seen) -> list[Verdict]:
    """Every promise."""
    return [
        _level("the table", [(sample.at, sample.table) for sample in seen.samples], LEVEL),
        _level("its indexes", [(sample.at, sample.indexes) for sample in seen.samples], LEVEL),
        *_workers(seen.samples),
        _oldest(seen.samples, "due", OLDEST_DUE, lambda sample: sample.oldest_due),
        _oldest(seen.samples, "running", seen.longest + SLOWEST, lambda sample: sample.oldest_running),
        _load(seen),
        _nothing("every job came to its end, and did what it does as often as it should", seen.miscounts),
        _nothing("nothing in the workers' log but failures on purpose", seen.complaints),
    ]


def _level(what: str, series: Sequence[tuple[float, int]], bound: float) -> Verdict:
    promise = f"{what}: largest in the last third ≤ {bound} × largest in the second third"
    end = series[-1][0] if series else 0.0
    second = [size for at, size in series if end / 3 < at <= end * 2 / 3]
    last = [size for at, size in series if at > end * 2 / 3]
    if not second or not last or max(second) == 0:
        return Verdict(promise, "too few samples", False)
    ratio = max(last) / max(second)
    return Verdict(promise, f"{mib(max(second))}, then {mib(max(last))}: {ratio:.2f} ×", ratio <= bound)


def _workers(samples: Sequence[Sample]) -> list[Verdict]:
    pids = sorted({pid for sample in samples for pid in sample.memory})
    stayed = all(sorted(sample.memory) == pids for sample in samples)
    return [
        *(
            _level(f"memory of worker {number}", [(s.at, s.memory.get(pid, 0)) for s in samples], FLAT)
            for number, pid in enumerate(pids, 1)
        ),
        Verdict("the same worker processes from the beginning to the end", f"{len(pids)}", bool(pids) and stayed),
    ]


def _oldest(samples: Sequence[Sample], what: str, bound: float, age: Callable[[Sample], float]) -> Verdict:
    # What a sample says is true of the time since the one before.
    begins = [0.0, *(sample.at for sample in samples)]
    steady = [age(sample) for begin, sample in zip(begins, samples, strict=False) if begin >= UNSTEADY - 1]
    ages = steady or [age(sample) for sample in samples]
    oldest = max(ages, default=float("inf"))
    when = "after the first minute" if steady else "in all of this short run"
    return Verdict(f"no job {what} for longer than {bound:g} s, {when}", f"{oldest:.2f} s", oldest <= bound)


def _load(seen: Seen) -> Verdict:
    last = seen.samples[-1] if seen.samples else None
    rate = last.enqueued / last.at if last is not None and last.at else 0.0
    return Verdict(
        f"the load was {seen.rate:,.0f} jobs/s", f"{rate:,.0f} jobs/s", rate >= BEHIND * seen.rate
    )  # fmt: skip


def _nothing(promise: str, found: list[str]) -> Verdict:
    return Verdict(promise, f"{len(found)}, as {found[0]}" if found else "as promised", not found)


def mib(size: float) -> str:
    """Bytes for people."""
    return f"{size / 2**20:,.1f} MiB"
