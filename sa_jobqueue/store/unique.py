"""Unique keys that no job holds any more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

import sqlalchemy as sa

from ..context import ClaimedJob
from ..lifecycle import extra
from ..statements.unique import drop_expired_keys, free_started_keys, free_stray_keys, started_parameters
from .compiled import Compiled
from .tables import OfTables

__all__ = ["FreedKeys", "UniqueKeys", "started_keys", "without_key"]


def started_keys(jobs: Iterable[ClaimedJob]) -> dict[int, str]:
    """By id the keys of those claimed jobs that have them until they are started."""
    found = [(job.id, extra(job).get("unique")) for job in jobs if job.extra is not None]
    return {job_id: key for job_id, key in found if isinstance(key, str)}


def without_key(job: ClaimedJob) -> ClaimedJob:
    """The same, for a job whose key is free already: at its end there is nothing to give back."""
    left = {name: value for name, value in extra(job).items() if name != "unique"}
    return job._replace(extra=json.dumps(left) if left else None)


class FreedKeys(NamedTuple):
    """A page of keys that was looked at: the last of them, None if there was none; how many of them were freed."""

    last: str | None
    freed: int


class UniqueKeys(OfTables):
    """Freeing keys: of jobs that have been started, those whose time is over, and those that changes by hand left behind."""

    def free_started_keys(self, connection: sa.Connection, started: Mapping[int, str]) -> set[int]:
        """Free the keys, given by their jobs' ids, of jobs that have been started. Returns those whose keys were freed."""
        return {job_id for (job_id,) in self._free_started.rows(connection, started_parameters(started))}

    @cached_property
    def _free_started(self) -> Compiled:
        return Compiled(free_started_keys({}, keys=self.tables.unique_key))

    def drop_expired_keys(self, connection: sa.Connection, *, limit: int = 1_000) -> int:
        """Delete a page of the keys whose time is over. Returns how many there were."""
        return len(connection.execute(drop_expired_keys(limit=limit, keys=self.tables.unique_key)).all())

    def free_stray_keys(self, connection: sa.Connection, *, after: str = "", limit: int = 1_000) -> FreedKeys:
        """Look at a page of keys, and free those whose jobs have ended or are gone."""
        statement = free_stray_keys(after=after, limit=limit, job=self.tables.job, keys=self.tables.unique_key)
        return FreedKeys._make(connection.execute(statement).one())
