"""What a check found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["LEVELS", "Finding", "Level", "beyond", "found", "worst"]

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
