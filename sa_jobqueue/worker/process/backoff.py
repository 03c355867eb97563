"""Waiting longer after each failure in a row."""

from __future__ import annotations

__all__ = ["backoff"]


def backoff(failures: int, *, first: float, most: float) -> float:
    """Seconds to wait after `failures` in a row: `first`, doubled each time, at most `most`."""
    return min(first * 2.0 ** min(max(failures - 1, 0), 10), most)
