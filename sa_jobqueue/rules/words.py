"""Numbers as people read them: ages, durations, sizes."""

from __future__ import annotations

from collections.abc import Sequence

from .tally import BOUNDS


def versioned(task: str, version: object) -> str:
    """A task for people, with the version of its arguments unless it is None or 1."""
    return task if version in {None, "1"} else f"{task} of version {version}"


def follow_ups_of(extras: object) -> dict[str, str]:
    """The tasks of a job's follow-ups, from its column `extras`, which may be any JSON: {"on failure": "shop.notify"}."""
    given = extras if isinstance(extras, dict) else {}
    named = {when: given.get(f"on_{when}") for when in ("failure", "success")}
    tasks = {f"on {when}": of.get("task") for when, of in named.items() if isinstance(of, dict)}
    return {when: task for when, task in tasks.items() if isinstance(task, str)}


def age(seconds: float | None, *, short: bool = False) -> str:
    """A duration in its two largest units: 45s, 3m 20s, 2h 5m, 3d 4h; with `short` in the largest unit alone."""
    if seconds is None:
        return ""
    left = round(abs(seconds))
    for size, unit, smaller, smaller_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if left >= size:
            rest = left % size // smaller
            return f"{left // size:,}{unit}" + (f" {rest}{smaller_unit}" if rest and not short else "")
    return f"{left}s"


def duration(seconds: float) -> str:
    """A duration as measured: 12 ms, 0.31 s, 12.5 s; from a minute on as an age."""
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    return age(seconds) if seconds >= 60 else f"{seconds:.3g} s"


def estimated(seconds: float) -> str:
    """A duration estimated from a histogram bucket, with two digits: more are not known. The last bucket has no end: > 1h."""
    if seconds >= BOUNDS[-1]:
        return f"> {duration(BOUNDS[-1])}"
    return duration(float(f"{seconds:.2g}"))


def jobs_of(number: int) -> str:
    """1 job, 2 jobs."""
    return f"{number:,} job{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """A number of bytes: 512 bytes, 31 kB, 1.2 MB, 3.4 GB."""
    left = float(number)
    for unit in ("bytes", "kB", "MB", "GB"):
        if left < 1000 or unit == "GB":
            break
        left /= 1000
    return f"{left:,.0f} {unit}" if unit == "bytes" or left >= 10 else f"{left:.1f} {unit}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names with commas between them, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
