"""What one worker process says of itself at one moment, as a value and as a line of JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter

from ..statements.workers import serves
from ..tally import TaskTally
from ..worker.state import WorkerState
from ..worker.worker import Worker

__all__ = ["Snapshot", "read_snapshot"]

#: Seconds without a move after which a worker whose lease is shorter counts as stuck.
_SHORTEST_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker's tally since its process began, and its state. `lease`: its setting."""

    tallies: tuple[TaskTally, ...]
    state: WorkerState
    lease: float

    def is_stuck(self, unheard: float = 0.0) -> bool:
        """Whether its threads stand still; `unheard`: seconds since it said this."""
        late = self.state.late if self.state.serving and not self.state.leaving else 0.0
        return late + unheard > max(self.lease, _SHORTEST_PATIENCE)

    @property
    def not_ready(self) -> str | None:
        """Why it cannot take jobs just now; None: it can."""
        if not self.state.serving:
            return "it has not begun"
        if self.state.leaving:
            return "it is leaving"
        return "the database does not answer" if self.state.away else None

    def to_line(self) -> bytes:
        """One line of JSON."""
        return _ADAPTER.dump_json(self) + b"\n"

    @staticmethod
    def from_line(line: bytes) -> Snapshot:
        """What `to_line` made. Raises ValueError."""
        return _ADAPTER.validate_json(line)


_ADAPTER = TypeAdapter(Snapshot)


def read_snapshot(worker: Worker) -> Snapshot:
    """Read it. The tasks of the worker's queues are there from the beginning, with zeros, so that a rate sees their first jobs."""
    known = {task.name: task.queue for task in worker.registry if serves(worker.queues, task.queue)}
    return Snapshot(tuple(_with_zeros(worker.tally(), known.items())), worker.state(), worker.settings.lease)


def _with_zeros(tallies: Iterable[TaskTally], known: Iterable[tuple[str, str]]) -> list[TaskTally]:
    counted = {one.key: one for one in tallies}
    for task, queue in known:
        counted.setdefault((queue, task), TaskTally(queue, task))
    return [counted[key] for key in sorted(counted)]
