"""Durations counted in buckets: the bounds that everything which counts durations shares, and quantiles of what was counted.

>>> counts = [0] * BUCKETS
>>> for seconds in (0.002, 0.03, 0.04, 700.0):
...     counts[bucket_of(seconds)] += 1
>>> round(quantile(counts, 0.5), 4)
0.0375
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["BOUNDS", "BUCKETS", "RANGES", "bucket_of", "quantile"]

#: The upper bounds of the buckets in seconds, each inclusive, as Prometheus has them. What is longer is in one more bucket.
BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0,
)  # fmt: skip
BUCKETS = len(BOUNDS) + 1
#: The bounds of each bucket: more than the first, and at most the second. What is over a billion seconds is no duration.
RANGES = tuple(zip((0.0, *BOUNDS), (*BOUNDS, 1e9), strict=True))


def bucket_of(seconds: float) -> int:
    """The number of the bucket for a duration, from 0 on."""
    return bisect_left(BOUNDS, seconds)


def quantile(counts: Sequence[int], q: float) -> float | None:
    """Seconds within which the share `q`, from 0 to 1, of the durations stayed; None if none was counted.

    Within a bucket the durations are taken to be spread evenly, as `histogram_quantile` of Prometheus does. In the last bucket
    it is the lower bound, because there is no upper one.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below = q * total, 0
    for number, count in enumerate(counts):
        if count and below + count >= rank:
            if number == len(BOUNDS):
                break
            low = BOUNDS[number - 1] if number else 0.0
            return low + (BOUNDS[number] - low) * max(rank - below, 0.0) / count
        below += count
    return BOUNDS[-1]
