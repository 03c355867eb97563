"""What jobs came to, counted by minute and by hour."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property

import sqlalchemy as sa

from ..statements.stats import add_stats, drop_old_stats, roll_up_stats, stats_parameters, written_stats
from ..tally import TaskTally
from .compiled import Compiled
from .tables import OfTables

__all__ = ["Stats"]


class Stats(OfTables):
    """Adding to what was counted, and keeping it short."""

    def add_stats(
        self, connection: sa.Connection, tallies: Sequence[TaskTally], *, worker: uuid.UUID, number: int
    ) -> bool:
        """Add what `worker` has counted, the `number`th time. False: its row is gone, and nothing was added."""
        given = stats_parameters(tallies, worker=worker, number=number)
        if self._add_stats.rows(connection, given):
            return True
        written = connection.scalar(written_stats(worker, workers=self.tables.worker))
        return written is not None and written >= number

    def roll_up_stats(self, connection: sa.Connection, *, keep: timedelta, limit: int) -> int:
        """Move a page of minutes older than `keep` into their hours. Returns how many rows were moved."""
        return int(connection.scalar(roll_up_stats(keep=keep, limit=limit, stat=self.tables.stat)) or 0)

    def drop_old_stats(self, connection: sa.Connection, *, keep: timedelta, limit: int) -> int:
        """Delete a page of hours older than `keep`. Returns how many rows were deleted."""
        statement: sa.Executable = drop_old_stats(keep=keep, limit=limit, stat=self.tables.stat)
        assert isinstance(statement, sa.Delete)
        return connection.execute(statement).rowcount

    @cached_property
    def _add_stats(self) -> Compiled:
        # Core would compile it each time, which takes as long as all else: an ON CONFLICT is not cached.
        none = uuid.UUID(int=0)
        return Compiled(add_stats([], worker=none, number=0, stat=self.tables.stat, workers=self.tables.worker))
