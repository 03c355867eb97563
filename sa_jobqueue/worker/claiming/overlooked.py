"""Whether claims overlook a due job: they return fewer jobs than there are, without an error.

When a trigger of the application's returns NULL, the row of the job stays as it is. Each claim then picks this job and does not
get it. Finding that out in the claim itself would cost every claim, so it is asked from time to time.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import NamedTuple

import sqlalchemy as sa

from ..connections.service import Connector
from .limited import LimitedQueues
from .skipped import SkippedJobs

__all__ = ["Looked", "OverlookedJobs"]

#: Seconds between two looks while jobs come; doubled from look to look where none do, up to the second number.
_FIRST, _LONGEST = 1.0, 10.0


class Looked(NamedTuple):
    """What a look found."""

    any_due: bool
    """A job is due that the last claim did not return. It may have come since."""
    any_overlooked: bool
    """One was already there at the look before: a claim since then has overlooked it."""


class OverlookedJobs:
    """Looks, after claims that returned too few, for due jobs that are not `skipped`. Only for the claimer's thread."""

    def __init__(self, connector: Connector, skipped: SkippedJobs, limited: LimitedQueues) -> None:
        self._connector, self._skipped, self._limited = connector, skipped, limited
        self._looked, self._wait = monotonic(), _FIRST
        self._found: frozenset[int] = frozenset()

    def jobs_come(self) -> None:
        """Some were claimed, or announced."""
        self._wait = _FIRST

    def look(self, connection: sa.Connection, queues: Iterable[str], *, at_once: bool) -> Looked:
        """Look for such jobs in these queues, if it is time for that or `at_once` is set."""
        now, before = monotonic(), self._found
        ones = {queue: 1 for queue in queues if self._skipped.has_room(queue)}
        if not ones or not (before or at_once or now >= self._looked + self._wait):
            return Looked(False, False)
        self._looked, self._wait = now, min(2 * self._wait, _LONGEST)
        with self._connector.begin_one(connection):
            self._found = frozenset(
                self._connector.store.lock_due(connection, ones, but=self._skipped.ids(), known=self._limited.known)
            )
        return Looked(bool(self._found), bool(self._found & before))
