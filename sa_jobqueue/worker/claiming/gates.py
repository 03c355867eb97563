"""Asking to be woken: a gate that is open says that some worker waits for jobs of a queue, so a commit that enqueues there sends
a NOTIFY.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from time import monotonic

from sqlalchemy import Connection

from ... import operations
from ...models import Job
from ..connections.service import Connector

__all__ = ["Gates"]

#: Seconds for which a gate is opened: at least, and at most (for that long producers send NOTIFYs to a worker that was killed).
#: Polls that find nothing open it again, so it stays open for three of them.
_SECONDS, _LONGEST = 5.0, 60.0


class Gates:
    """The gates that this worker has opened. Only for the claimer's thread."""

    def __init__(self, connector: Connector, *, poll: float, job: type[Job]) -> None:
        self._connector, self._job = connector, job
        self._seconds = min(max(_SECONDS, 3 * poll), _LONGEST)
        self._open_until: dict[str, float] = {}
        """By queue, by `monotonic()`."""

    @property
    def longest_poll(self) -> float:
        """Seconds between two polls at most, so that the gate stays open."""
        return self._seconds / 3

    def are_open(self, queues: Iterable[str]) -> bool:
        """Whether the gates of these queues stay open long enough."""
        later = monotonic() + self._seconds / 2
        return all(self._open_until.get(name, 0.0) >= later for name in queues)

    def open(self, connection: Connection, queues: Collection[str], *, above_all: Iterable[str]) -> bool:
        """Open the gates of these queues. Returns whether one of those in `above_all` was closed until now: jobs that were
        committed meanwhile have woken nobody.
        """
        now = monotonic()
        with self._connector.begin_one(connection):
            operations.listen_for(connection, sorted(queues), seconds=self._seconds, job=self._job)
        had_closed = any(self._open_until.get(name, 0.0) < monotonic() for name in above_all)
        self._open_until |= dict.fromkeys(queues, now + self._seconds)
        return had_closed

    def forget(self) -> None:
        """Another server may answer from now on, at which no gate is open."""
        self._open_until.clear()
