"""Whether claims pass over a job that is due: without an error they bring fewer jobs than there are.

A trigger of the application's that returns NULL leaves the row of a job as it is. Each claim then picks this job, and brings it not.
The claim itself does not say so, for that would cost each claim something; it is asked from time to time.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from sqlalchemy import Connection

from ... import operations
from ...models import Job
from ..connections.service import Connector
from .left_out import LeftOut

__all__ = ["PassedOver"]

#: Seconds between two looks, while jobs come; doubled from one to the next where none do, up to the second.
_FIRST, _LONGEST = 1.0, 10.0


class PassedOver:
    """Looks, after claims that came back short, for jobs that are neither claimed nor `left_out`. Only for the service's thread."""

    def __init__(self, connector: Connector, left_out: LeftOut, job: type[Job]) -> None:
        self._connector, self._left_out, self._job = connector, left_out, job
        self._looked, self._wait = monotonic(), _FIRST
        self._found: frozenset[int] = frozenset()

    def jobs_come(self) -> None:
        """Some were claimed, or are said to be there."""
        self._wait = _FIRST

    def look(self, connection: Connection, queues: Iterable[str], *, at_once: bool) -> tuple[bool, bool]:
        """Whether there are some in these queues, and whether one was there at the last look, too, and so before a claim.

        Those that were not may have come since the claim. `at_once`: whenever the last look was.
        """
        now, before = monotonic(), self._found
        if self._left_out.full or not (before or at_once or now >= self._looked + self._wait):
            return False, False
        self._looked, self._wait = now, min(2 * self._wait, _LONGEST)
        with self._connector.begin_one(connection):
            ones = dict.fromkeys(queues, 1)
            self._found = frozenset(operations.lock_due(connection, ones, but=self._left_out.ids(), job=self._job))
        return bool(self._found), bool(self._found & before)
