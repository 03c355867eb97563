"""Small drawings, as the points and boxes of an SVG: without a style, which the policy of the pages does not let through."""

from __future__ import annotations

from collections.abc import Sequence

from ..histogram import RANGES

__all__ = ["bars", "points"]

_WIDE, _HIGH = 100.0, 20.0


def points(values: Sequence[float]) -> str:
    """The points of a line through these values, in a box of 100 by 20.

    >>> points([0, 2, 1])
    '0,19 50,1 100,10'
    """
    if not values:
        return ""
    most, apart = max([*values, 1e-9]), _WIDE / max(len(values) - 1, 1)
    return " ".join(
        f"{number * apart:.4g},{_HIGH - 1 - (_HIGH - 2) * value / most:.4g}" for number, value in enumerate(values)
    )


def bars(counts: Sequence[int]) -> list[tuple[float, float, int, float]]:
    """Of each bucket of a histogram from the first to the last that has something: its bounds in seconds, its count, and its width in percent."""
    used = [number for number, count in enumerate(counts) if count]
    if not used:
        return []
    most = max(counts)
    return [(*RANGES[number], counts[number], counts[number] * 100 / most) for number in range(used[0], used[-1] + 1)]
