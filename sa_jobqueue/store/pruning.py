"""Deleting the jobs whose time to be kept is over."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ..log import get_logger
from ..statements.archive import is_not_archived, make_months_of
from ..statements.parts import FIRST_TIME
from ..statements.prune import (
    first_over,
    limit_statements,
    make_months_of_page,
    move_page,
    move_this,
    postpone_purge,
    prune_jobs,
    prune_page,
    refuse_at_once,
)
from .faults import Fault, fault_of, is_month_missing
from .tables import OfTables

__all__ = ["Pruned", "Pruning"]

logger = get_logger(__name__)


class Pruned(NamedTuple):
    """How many jobs a page of pruning has deleted or moved, and up to which time it has come, in seconds since 1970."""

    jobs: int
    reached: float


class Pruning(OfTables):
    """Deleting pages of jobs, and getting past a job that cannot be deleted.

    `archive`: whether there are archived tasks; their jobs are moved to the archive then. Without it they are left. It fails if the
    archive has no month for one of them (`is_month_missing`): then `make_months_of_page`.
    """

    def prune(
        self,
        connection: sa.Connection,
        *,
        limit: int = 1_000,
        seconds: float | None = None,
        after: float = FIRST_TIME,
        archive: bool = False,
    ) -> Pruned:
        """Delete at most `limit` jobs whose time to be kept is over, from those on whose time was over at `after`.

        `seconds`: after which the DELETE is given up. One row that cannot be deleted keeps the others, too: the error is
        raised, and a smaller `limit` may do; `prune_first` gets past such a row.
        """
        _refuse_soon(connection, seconds)
        if archive:
            jobs, reached = connection.execute(move_page(after=after, limit=limit, **self.tables.of_job)).one()
            return Pruned(jobs, after if reached is None else reached)
        tables = self.tables
        page = prune_page(
            after=after, limit=limit, job=tables.job, progress=tables.progress, log=tables.log,
            archived_task=tables.archived_task,
        )  # fmt: skip
        gone = connection.execute(page).all()
        return Pruned(len(gone), max((row.purge_at for row in gone), default=after))

    def make_months_of_page(self, connection: sa.Connection, *, limit: int, after: float = FIRST_TIME) -> int:
        """Make the months of the archive that the next page needs; how many were missing."""
        return int(connection.scalar(make_months_of_page(after=after, limit=limit, job=self.tables.job)) or 0)

    def prune_first(
        self,
        connection: sa.Connection,
        *,
        seconds: float | None = None,
        after: float = FIRST_TIME,
        archive: bool = False,
        months: bool = False,
    ) -> bool | None:
        """Delete the job whose time has been over for longest: whether it could be; None if there is none.

        A job that a foreign key of the application's needs stays, and so does one that cannot be deleted in time: it is
        looked at again after a day, and is said once. Not where the archive is locked as a whole, which is no job's fault.

        `months`: make the month of the archive that it needs, too. One whose month cannot be there stays then as well.
        """
        job, archived_task = self.tables.job, self.tables.archived_task
        # Locked to the end: another worker may not put off the next in its place.
        first: int | None = connection.scalars(
            first_over(after=after, archive=archive, job=job, archived_task=archived_task)
        ).first()
        if first is None:
            return None
        this = job.__table__.c.id == first
        if months:
            moved = sa.select(job.__table__.c.id).where(
                this, sa.not_(is_not_archived(job, archived_task=archived_task))
            )
            connection.execute(make_months_of(moved, job=job))
        try:
            with connection.begin_nested():
                _refuse_soon(connection, seconds)
                if archive:
                    connection.execute(move_this(this, **self.tables.of_job))
                else:
                    connection.execute(prune_jobs(this, job=job, progress=self.tables.progress, log=self.tables.log))
        except DBAPIError as error:
            fault = fault_of(error)
            if fault is Fault.AWAY or (is_month_missing(error) and not months):
                raise
            if archive and fault is Fault.LATE and self.is_archive_locked(connection):
                raise
            connection.execute(postpone_purge(this, by=timedelta(days=1), job=job))
            logger.warning("job %d cannot be deleted; it stays for another day: %s", first, error.orig)
            return False
        return True


def _refuse_soon(connection: sa.Connection, seconds: float | None) -> None:
    """Let a DELETE say that it cannot be done by itself, and in time."""
    connection.execute(refuse_at_once())
    if seconds is not None:
        connection.execute(limit_statements(seconds))
