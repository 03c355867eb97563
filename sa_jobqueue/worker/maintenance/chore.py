"""What a chore of maintenance is."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from time import monotonic

import sqlalchemy as sa

__all__ = ["Chore", "Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """How long a chore of several pages may go on before the others have theirs, leases to renew among them."""

    until: float
    ending: threading.Event

    @property
    def is_over(self) -> bool:
        """Whether to stop after this page: the others wait, or the worker ends."""
        return self.ending.is_set() or monotonic() >= self.until


class Chore(ABC):
    """Something to do every `every` seconds, first at `at`. The maintenance thread alone uses it."""

    def __init__(self, every: float, *, at: float = 0.0) -> None:
        self.every, self.at = every, at

    def due_at(self) -> float:
        """When it is to be done next."""
        return self.at

    @abstractmethod
    def do(self, connection: sa.Connection, turn: Turn) -> bool:
        """Do it once. True: there is more to do, so come again soon."""
