"""Whether worker processes live, and whether they can take jobs: what `/livez` and `/readyz` answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from .pipes import Receiver
from .snapshot import Snapshot

__all__ = ["Answer", "DatabaseProbes", "Probes", "SupervisorProbes", "WorkerProbes"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a probe: well or not, and a line that says why."""

    well: bool
    said: str


class Probes(Protocol):
    """Both answers. Any thread may ask."""

    def live(self) -> Answer:
        """Not well: the process should be killed and started again."""
        ...

    def ready(self) -> Answer:
        """Not well: it takes no jobs just now."""
        ...


class WorkerProbes:
    """Those of one worker process."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def live(self) -> Answer:
        """The threads that claim and that do maintenance move."""
        return _live(self._read())

    def ready(self) -> Answer:
        """It serves, is not leaving, and the database answered the last time."""
        reason = self._read().not_ready
        return Answer(reason is None, reason or "ready")


class SupervisorProbes:
    """Those of a supervisor and its worker processes. A process that dies is the supervisor's business, and is well."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def live(self) -> Answer:
        """The threads of all its processes move."""
        now = monotonic()
        answers = {
            number: _live(heard.snapshot, now - heard.at) for number, heard in self._receiver.sums.live().items()
        }
        ill = [f"process {number}: {answer.said}" for number, answer in answers.items() if not answer.well]
        return Answer(not ill or self._receiver.is_leaving, "; ".join(ill) or "live")

    def ready(self) -> Answer:
        """At least one of its processes is ready."""
        if self._receiver.is_leaving:
            return Answer(False, "it is leaving")
        reasons = {number: heard.snapshot.not_ready for number, heard in self._receiver.sums.live().items()}
        if not reasons:
            return Answer(False, "no process has begun")
        said = "; ".join(f"process {number}: {reason}" for number, reason in reasons.items() if reason is not None)
        return Answer(None in reasons.values(), said or "ready")


class DatabaseProbes:
    """Those of a process that only asks the database: it lives, and is ready while the database answers."""

    def __init__(self, is_up: Callable[[], bool]) -> None:
        self._is_up = is_up

    def live(self) -> Answer:
        """Always well."""
        return Answer(True, "live")

    def ready(self) -> Answer:
        """The database answers."""
        return Answer(True, "ready") if self._is_up() else Answer(False, "the database does not answer")


def _live(snapshot: Snapshot, unheard: float = 0.0) -> Answer:
    if not snapshot.is_stuck(unheard):
        return Answer(True, "live")
    return Answer(False, f"its threads have not moved for {snapshot.state.late + unheard:.0f} s")
