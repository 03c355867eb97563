"""Whether each job came to its end: what it should have done, against the traces that it left."""

from __future__ import annotations

from collections.abc import Iterable

from sa_jobqueue import JobStatus
from tests.faults.soak.tasks import Mix

_MANY = 255


def miscounts(mix: Mix, total: int, *, runs: Iterable[int], effects: Iterable[int], failed: Iterable[int]) -> list[str]:
    """What does not agree about the jobs 0 to `total` - 1.

    `runs`: a number for each run of a handler that came to its end. `effects`: one for each row that was written through
    `ctx.session`. `failed`: one for each job that was `failed` when it was looked at, before it was deleted.

    A job whose handler ran as often as it should, which is not failed and not live, is completed: nothing else ends one.
    """
    found: list[str] = []
    counts = {name: _count(numbers, total, name, found) for name, numbers in (
        ("ran", runs), ("wrote", effects), ("failed", failed)
    )}  # fmt: skip
    for number in range(total):
        kind = mix.kind(number)
        expected = {"ran": kind.runs, "wrote": kind.effects, "failed": int(kind.ends is JobStatus.FAILED)}
        for name, times in expected.items():
            if (came := counts[name][number]) != times:
                found.append(f"job {number} ({kind.title}) {name} {came} times, not {times}")
    return found


def _count(numbers: Iterable[int], total: int, name: str, found: list[str]) -> bytearray:
    counted = bytearray(total)
    for number in numbers:
        if number >= total:
            found.append(f"job {number} {name}, and was never enqueued")
        elif counted[number] < _MANY:
            counted[number] += 1
    return counted
