"""What arrived in queues, what left them, and whether their workers keep up: from counts of the backlog and of outcomes.

>>> flow = Flow([60.0, 60.0], [Depth(0), Depth(due=5), Depth(due=5)], left=[10, 10])
>>> flow.arrived
[15.0, 10.0]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..rules.words import age
from .read import ENDS

#: The outcomes after which a job no longer waits: it has ended, or waits for a later time. What goes back at once has not left.
LEAVES = (*ENDS, "retried", "snoozed", "suspended")
#: Workers fall behind if the backlog grows by more than this share of the arrivals, or nothing leaves, and the oldest job has waited for more
#: than this share of the time and more than these seconds. If the oldest job has waited longer than the whole time, a smaller share is enough,
#: so that slow growth is reported in the end.
_SLACK, _LONG = 0.02, 60.0
#: Seconds at the end of a longer time that also get a verdict of their own.
_LATELY = 3_600.0


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs were due and running at the end of a step. `more`: counting stopped, so that more were due."""

    due: int = 0
    running: int = 0
    oldest: float | None = None
    """Seconds for which the first due job had waited; None: none was due."""
    more: bool = False

    @classmethod
    def of(cls, depths: Iterable[Depth]) -> Depth:
        """The depth of some queues together."""
        found = list(depths)
        oldest = max((depth.oldest for depth in found if depth.oldest is not None), default=None)
        due, running = (sum(getattr(depth, name) for depth in found) for name in ("due", "running"))
        return cls(due, running, oldest, any(depth.more for depth in found))

    @property
    def held(self) -> int:
        """Due and running jobs."""
        return self.due + self.running


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the workers keep up: "keeps up", "falls behind", "paused" or "unknown"; and what arrived and left, where that is known."""

    state: str
    words: str
    arrived: int | None = None
    left: int | None = None


@dataclass(frozen=True)
class Flow:
    """What arrived in some queues, waited there and left, step by step.

    `seconds`: the lengths of the steps. `depths`: before the first step, then at the end of each step; None: not counted. `left`: the jobs
    with an outcome of `LEAVES` in each step.
    """

    seconds: Sequence[float]
    depths: Sequence[Depth | None]
    left: Sequence[int]

    @cached_property
    def arrived(self) -> list[float | None]:
        """Jobs that became due in each step: new jobs, and jobs whose later time came. None: not known.

        They are what left, and what there is more than before. Where there is less, as when an operator has cancelled jobs, none arrived.
        Workers count outcomes some seconds late, so what a step has too little is first taken from the next step.
        """
        found: list[float | None] = [None] * len(self.left)
        before, owed = None, 0
        for place, depth in enumerate(self.depths):
            if depth is None or depth.more:
                continue
            if before is not None:
                start, held = before
                new = depth.held - held + sum(self.left[start:place])
                number = max(new + owed, 0) / (place - start)
                owed = min(new, 0) if new + owed < 0 else 0
                found[start:place] = [number] * (place - start)
            before = place, depth.held
        return found

    def verdict(self, *, paused: bool = False, time: str = "") -> Verdict:
        """Whether the workers keep up. `time`: the length of the time in words, if it ends now. Then workers that fall behind in the last hour
        fall behind, because a longer time would show it late.
        """
        place, seconds = len(self.seconds), 0.0
        while place and seconds < _LATELY:
            place, seconds = place - 1, seconds + self.seconds[place - 1]
        if time and place and not paused:
            lately = Flow(self.seconds[place:], self.depths[place:], self.left[place:]).verdict()
            if lately.state == "falls behind":
                return lately
        counted = [(place, depth) for place, depth in enumerate(self.depths) if depth is not None]
        if len(counted) < 2:
            return Verdict("unknown", "Not known yet: workers count once a minute how many jobs wait.")
        (begin, first), (end, last) = counted[0], counted[-1]
        whole, oldest = sum(self.seconds[begin:end]), last.oldest or 0.0
        is_old, longer = oldest > max(_SLACK * whole, _LONG), oldest - (first.oldest or 0.0)
        rest = f"{last.due:,} wait, the oldest for {age(oldest)}" if last.due else "nothing waits"
        slack = _SLACK * whole / max(oldest, whole)
        known = {place: number for place, number in enumerate(self.arrived) if number is not None}
        if last.more or not known:
            behind, least = is_old and longer > slack * whole, "at least " if last.more else ""
            change = f"{age(longer)} {'longer' if longer > 0 else 'less'} than {age(whole) if begin else time or age(whole)} before"
            return _verdict(f"{least}{rest}, {change}", paused=paused, behind=behind)
        arrived, left = round(sum(known.values())), sum(self.left[place] for place in known)
        growth, seconds = arrived - left, sum(self.seconds[place] for place in known)
        grows = growth > slack * arrived
        behind = is_old and (grows or not left)
        if behind and grows:
            rest = f"grows by {growth * 3_600 / seconds:,.0f} an hour"
        elif last.due and not paused and -growth > _SLACK * left:
            rest = f"empty in {age(last.due * seconds / -growth)} at this rate"
        time = (
            time if time and len(known) >= len(self.left) - 1 else age(seconds)
        )  # the last step may not be counted yet
        words = f"{arrived:,} in, {left:,} out in {time}; {rest}"
        return _verdict(words, arrived, left, paused=paused, behind=behind)


def _verdict(words: str, *numbers: int, paused: bool, behind: bool) -> Verdict:
    state = "paused" if paused else "falls behind" if behind else "keeps up"
    return Verdict(state, f"{state.capitalize()}: {words}.", *numbers)
