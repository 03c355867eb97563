"""Ending jobs that wait although their time is over."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from ..statements.expiry import end_expired, end_overdue, forget_expiry
from .tables import OfTables

__all__ = ["Expiry", "Late"]


class Late(NamedTuple):
    """A job that waited although its time was over, and was ended."""

    id: int
    queue: str
    task: str


class Expiry(OfTables):
    """Ending pages of jobs that are not to be started any more."""

    def end_expired(self, connection: sa.Connection, *, limit: int = 1_000) -> list[Late]:
        """Cancel jobs that were not started by their expiry, and return them."""
        statement = end_expired(limit=limit, job=self.tables.job, keys=self.tables.unique_key, events=self.tables.event)
        return list(map(Late._make, connection.execute(statement)))

    def end_overdue(self, connection: sa.Connection, *, limit: int = 1_000) -> list[Late]:
        """Fail jobs that wait although their deadline is over, and return them."""
        statement = end_overdue(limit=limit, job=self.tables.job, keys=self.tables.unique_key, events=self.tables.event)
        return list(map(Late._make, connection.execute(statement)))

    def forget_expiry(self, connection: sa.Connection, *, limit: int = 1_000) -> list[int]:
        """Take the expiry from jobs that were started in time and wait for another attempt, and return their ids."""
        return list(connection.execute(forget_expiry(limit=limit, job=self.tables.job)).scalars())
