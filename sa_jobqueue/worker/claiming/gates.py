"""Asking to be woken: a gate that is open says that some worker waits for jobs of a queue, so a commit that enqueues there sends
a NOTIFY.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import monotonic

import sqlalchemy as sa

from ..connections.service import Connector
from .polling import PollTimer

__all__ = ["Gates"]

#: Seconds for which a gate is opened: at least, and at most (for that long producers send NOTIFYs to a worker that was killed).
#: Polls that find nothing open it again, so it stays open for three of them.
_SECONDS, _LONGEST = 5.0, 60.0


class Gates:
    """The gates that this worker has opened. Only for the claimer's thread."""

    def __init__(self, connector: Connector, *, poll: float) -> None:
        self._connector = connector
        self._seconds = min(max(_SECONDS, 3 * poll), _LONGEST)
        self._open_until: dict[str, float] = {}
        """By queue, by `monotonic()`."""

    @property
    def longest_poll(self) -> float:
        """Seconds between two polls at most, so that the gate stays open."""
        return self._seconds / 3

    def ask(self, connection: sa.Connection, short: Collection[str], timers: Mapping[str, PollTimer]) -> bool:
        """Open the gates of the queues that have run dry, `short` ones and those that are polled later, unless they are open.

        Not the gates of queues that keep us busy: their producers would send NOTIFYs for nothing, and each takes a lock at its
        commit. Returns whether the gate of a queue in `short` was closed until now: jobs committed meanwhile have woken no worker.
        """
        now = monotonic()
        if all(self._open_until.get(name, 0.0) >= now + self._seconds / 2 for name in short):
            return False
        dry = {*short, *(name for name, timer in timers.items() if timer.at > now)}
        with self._connector.begin_one(connection):
            self._connector.store.listen_for(connection, sorted(dry), seconds=self._seconds)
        was_closed = any(self._open_until.get(name, 0.0) < monotonic() for name in short)
        self._open_until |= dict.fromkeys(dry, now + self._seconds)
        return was_closed

    def forget(self) -> None:
        """Another server may answer from now on, at which no gate is open."""
        self._open_until.clear()
