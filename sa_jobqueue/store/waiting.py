"""Waiting for the end of jobs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import sqlalchemy as sa

from ..lifecycle import FINISHED
from ..results import JobEnd
from ..statements.archived import archived_ends
from ..statements.waiting import drop_expired_waits, end_waits, ends_of, open_end_gate, wait_for_jobs
from ..statements.waking import channel_of
from .tables import OfTables

__all__ = ["Waiting"]


class Waiting(OfTables):
    """Which jobs are awaited, what became of them, and the channel on which their ends are told."""

    def ends(self, connection: sa.Connection, ids: Sequence[int]) -> dict[int, JobEnd | None]:
        """Of these jobs what became of each: None while it has not ended, and a `JobEnd` that `is_gone` where there is none."""
        found: dict[int, JobEnd | None] = {job_id: JobEnd(job_id, None, None, None, None) for job_id in ids}
        for job_id, task, status, result, error in connection.execute(ends_of(ids, job=self.tables.job)):
            last = error if isinstance(error, dict) else None  # whatever plain SQL has written
            found[job_id] = JobEnd(job_id, task, status, result, last) if status in FINISHED else None
        return found

    def archived_ends(self, connection: sa.Connection, ids: Sequence[int]) -> dict[int, JobEnd | None]:
        """What became of those of these jobs that are in the archive."""
        found: dict[int, JobEnd | None] = {}
        for job_id, task, status, result, error in connection.execute(
            archived_ends(ids, archived_job=self.tables.archived_job)
        ):
            found[job_id] = JobEnd(job_id, task, status, result, error if isinstance(error, dict) else None)
        return found

    def wait_for(
        self, connection: sa.Connection, ids: Sequence[int], *, waiter: uuid.UUID, seconds: float, schema: str
    ) -> None:
        """Have the ends of these jobs told during the next `seconds`."""
        connection.execute(
            open_end_gate(seconds=seconds, schema=schema)
        )  # first, because a row says nothing while the gate is closed
        connection.execute(wait_for_jobs(ids, waiter=waiter, seconds=seconds, awaited=self.tables.awaited))

    def end_waits(self, connection: sa.Connection, ids: Sequence[int], *, waiter: uuid.UUID) -> None:
        """Say that `waiter` does not wait for these any more."""
        connection.execute(end_waits(ids, waiter=waiter, awaited=self.tables.awaited))

    def drop_expired_waits(self, connection: sa.Connection) -> None:
        """Delete what processes left behind that were killed while they waited."""
        connection.execute(drop_expired_waits(awaited=self.tables.awaited))

    def channel_of_ends(self, connection: sa.Connection, *, schema: str) -> str:
        """The channel on which the ends of awaited jobs are told, by id."""
        return str(connection.scalar(channel_of(table=self.tables.awaited.__tablename__, schema=schema)))
