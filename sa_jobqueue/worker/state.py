"""What a worker does just now, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..histogram import BUCKETS

__all__ = ["QueueState", "WorkerState"]


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue in this process: its `slots`, how many of them are `running` a handler, and the jobs `waiting` for one.

    `stuck`: slots held by handlers that timed out and have not come back; they count as running. `paused`: no job is started,
    because the database gives handlers no connection.
    """

    slots: int
    running: int
    waiting: int
    stuck: int
    paused: bool


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker at one moment.

    `serving`: it has begun and not ended. `listening`: it hears of new jobs by NOTIFY. `blocked`: its event loop does not answer.
    `leaving`: it claims no more. `away`: the database did not answer the last time. `late`: seconds since the thread that claims, or
    the one of maintenance, should have moved on; some while it waits for the database.
    `pressure`: why the worker claims less, which is for this `share` of its slots; None: it does not.
    `claimed`, `started`, `ended`, `rescued`: jobs since `run()` or `serve()` began. `unfinished`: jobs claimed here whose outcome
    is not known yet. `unwritten`: outcomes that wait to be written, `refused` of which the database has refused. `counts`: what
    came of the jobs, as `Worker.counts`. `claims`: claims by how long they took, in the buckets of `sa_jobqueue.histogram`, also those
    that brought no job, and with the outcomes that were written along; `claim_seconds`: all together. `memory`: bytes resident.
    `loop_lag`: seconds that the event loop lately took to answer. The numbers are read one after the other while the worker goes
    on, so two of them may differ by the jobs of a moment.
    """

    serving: bool
    queues: Mapping[str, QueueState]
    counts: Mapping[str, int]
    listening: bool = False
    blocked: bool = False
    leaving: bool = False
    away: bool = False
    late: float = 0.0
    pressure: str | None = None
    share: float = 1.0
    claimed: int = 0
    started: int = 0
    ended: int = 0
    rescued: int = 0
    unfinished: int = 0
    unwritten: int = 0
    refused: int = 0
    claims: tuple[int, ...] = (0,) * BUCKETS
    claim_seconds: float = 0.0
    memory: int = 0
    loop_lag: float = 0.0

    @property
    def slots(self) -> int:
        """Slots of all queues."""
        return sum(queue.slots for queue in self.queues.values())

    @property
    def running(self) -> int:
        """Handlers that run, stuck ones too."""
        return sum(queue.running for queue in self.queues.values())

    @property
    def waiting(self) -> int:
        """Jobs claimed that wait for a slot."""
        return sum(queue.waiting for queue in self.queues.values())

    @property
    def stuck(self) -> int:
        """Slots held by handlers that timed out."""
        return sum(queue.stuck for queue in self.queues.values())
