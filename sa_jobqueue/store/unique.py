"""Unique keys that no job holds any more."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from ..statements.unique import drop_expired_keys, free_stray_keys
from .tables import OfTables

__all__ = ["FreedKeys", "UniqueKeys"]


class FreedKeys(NamedTuple):
    """A page of keys that was looked at: the last of them, None if there was none; how many of them were freed."""

    last: str | None
    freed: int


class UniqueKeys(OfTables):
    """Freeing keys whose time is over, and those that were left behind by changes made by hand."""

    def drop_expired_keys(self, connection: Connection, *, limit: int = 1_000) -> int:
        """Delete a page of the keys whose time is over. Returns how many there were."""
        return len(connection.execute(drop_expired_keys(limit=limit, keys=self.tables.unique_key)).all())

    def free_stray_keys(self, connection: Connection, *, after: str = "", limit: int = 1_000) -> FreedKeys:
        """Look at a page of keys, and free those whose jobs have ended or are gone."""
        statement = free_stray_keys(after=after, limit=limit, job=self.tables.job, keys=self.tables.unique_key)
        return FreedKeys._make(connection.execute(statement).one())
