"""What `drain` and `work_one` have done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from ..payload import shown

__all__ = ["Drained", "Ran"]

#: Jobs that are listed as text, at most.
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that was run."""

    job_id: int
    task: str
    queue: str
    args: Mapping[str, Any]
    """As they are stored: plain JSON."""
    attempt: int
    outcome: str
    """"completed", "retried", "failed", "cancelled", "snoozed" or "released"."""
    error: BaseException | None = None
    """What the handler has raised."""
    result: Any = None
    """What it returned, as plain JSON, if its task says `record=True`."""

    def __str__(self) -> str:
        given = ", ".join(f"{name}={shown(value)}" for name, value in self.args.items())
        why = "" if self.error is None else f" ({type(self.error).__name__}: {self.error})"
        return f"job {self.job_id} {self.task}({given}): {self.outcome}{why}"


class Drained(Sequence[Ran]):
    """The jobs that were run, in that order."""

    def __init__(self, ran: Sequence[Ran], left: str) -> None:
        self._ran, self.left = tuple(ran), left
        """`left`: what was not run, and why; see `explain`. It is looked at only if nothing was run."""

    @property
    def outcomes(self) -> Counter[str]:
        """How many jobs ended in which way: `{"completed": 2, "retried": 1}`. An outcome that no job had is 0."""
        return Counter(one.outcome for one in self._ran)

    @property
    def errors(self) -> list[BaseException]:
        """What handlers have raised."""
        return [one.error for one in self._ran if one.error is not None]

    @overload
    def __getitem__(self, index: int) -> Ran: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Ran]: ...
    def __getitem__(self, index: int | slice) -> Ran | Sequence[Ran]:
        return self._ran[index]

    def __iter__(self) -> Iterator[Ran]:
        return iter(self._ran)

    def __len__(self) -> int:
        return len(self._ran)

    def __repr__(self) -> str:
        if not self._ran:
            return f"<nothing was run: {self.left}>"
        first = (
            sorted(self._ran, key=lambda one: one.outcome == "completed")[:_NAMED] if len(self) > _NAMED else self._ran
        )
        said = "; ".join(map(str, first))
        if len(self) > _NAMED:
            counts = ", ".join(f"{number:,} {outcome}" for outcome, number in self.outcomes.items())
            said = f"{len(self):,} jobs: {counts}; {said}; and {len(self) - _NAMED:,} more"
        return f"<{said}>"
