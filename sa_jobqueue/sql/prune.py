"""Deleting finished jobs: jobs that an operator names, and jobs whose retention is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ..models import Job, JobMixin, companions_of, status_in
from ..rules.lifecycle import FINISHED
from ..util.log import get_logger
from .admin import UNSYNCHRONIZED, Criterion, check_criteria
from .archive import is_not_archived, make_months_of, move_jobs
from .claims import Fault, fault_of, is_month_missing
from .notes import delete_notes
from .parts import FIRST_TIME, epoch_of, in_seconds, materialized, members, table_of
from .tables import StorePart


def prune_jobs(*where: Criterion, limit: int = 1_000, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete at most `limit` finished jobs: those that match, or without criteria those whose retention is over.

    Without criteria, jobs of archived tasks are left to the workers, which move them to the archive.

    Not the members of a workflow that goes on: others may need their results. They are deleted with their workflow.

    Rows that another transaction has locked are left for the next time. A row that a foreign key of the application's
    still needs makes the statement fail, as any DELETE would.
    """
    workflow = companions_of(job).workflow
    if not isinstance(limit, int):
        raise TypeError(f"limit must be an integer, not {limit!r}")
    if limit < 0:
        raise ValueError(f"limit must be 0 or more, not {limit!r}")
    check_criteria("prune_jobs", where)
    columns = table_of(job).c
    goes_on = sa.select(workflow.id).where(workflow.id == columns.workflow_id, workflow.finished_at.is_(None))
    named = sa.select(columns.id).where(*where, sa.not_(goes_on.correlate(table_of(job)).exists())).order_by(columns.id)
    chosen = named if where else _over(job).where(is_not_archived(job))
    return _delete_finished(job, chosen, limit).returning(columns.id)


def prune_page(*, after: float = FIRST_TIME, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete a page of the jobs whose retention ended at `after` or later, in seconds since 1970. Jobs of archived tasks are left: a
    worker may not know these tasks yet.

    Returns their ids and times; the next page begins at the last time. Beginning each page at the front would read all rows that
    were deleted before, while a snapshot is held.
    """
    columns = table_of(job).c
    over = _over(job, after=after).where(is_not_archived(job))
    gone = _delete_finished(job, over, limit)
    return gone.returning(columns.id, epoch_of(columns.purge_at))


def move_page(*, after: float = FIRST_TIME, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Like `prune_page`, where there are archived tasks: their jobs are moved to the archive, the others are deleted.

    Returns what `move_jobs` does.
    """
    return move_jobs(_ids(job, _over(job, after=after), limit), job=job)


def make_months_of_page(*, after: float = FIRST_TIME, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Make the months of the archive that this page needs; see `make_months_of`."""
    page = _over(job, after=after).where(_is_finished(job)).limit(sa.bindparam("page", limit, sa.Integer))
    return make_months_of(page, job=job)


def move_this(*where: Criterion, job: type[JobMixin] = Job) -> sa.Executable:
    """Move or delete the finished job that matches."""
    return move_jobs(_ids(job, sa.select(table_of(job).c.id).where(*where), 1), job=job)


def first_over(*, after: float = FIRST_TIME, archive: bool = False, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """The job whose retention ended first, at `after` or later, locked. `archive`: also a job of an archived task."""
    over = _over(job, after=after)
    if not archive:
        over = over.where(is_not_archived(job))
    return _locked_to_delete(job, over).limit(1)


def _over(job: type[JobMixin], *, after: float | None = None) -> sa.Select[Any]:
    # Sorted by the time alone, as the index is: a page would otherwise read and sort all jobs of one time.
    columns = table_of(job).c
    over = sa.select(columns.id).where(columns.purge_at <= sa.func.now()).order_by(columns.purge_at)
    if after is None:
        return over
    return over.where(columns.purge_at >= sa.func.to_timestamp(sa.bindparam("after", after, sa.Float)))


def _is_finished(job: type[JobMixin]) -> sa.ColumnElement[bool]:
    return status_in(table_of(job).c.status, FINISHED)


def _locked_to_delete(job: type[JobMixin], chosen: sa.Select[Any]) -> sa.Select[Any]:
    return chosen.where(_is_finished(job)).with_for_update(skip_locked=True)


def _ids(job: type[JobMixin], chosen: sa.Select[Any], limit: int) -> sa.Select[Any]:
    """The ids of at most `limit` of the chosen jobs, locked."""
    page = _locked_to_delete(job, chosen).limit(sa.bindparam("page", limit, sa.Integer))
    return sa.select(materialized(page, "chosen").c.id)


def _delete_finished(job: type[JobMixin], chosen: sa.Select[Any], limit: int) -> sa.Delete:
    """Delete the chosen jobs, with their progress and log lines."""
    ids = _ids(job, chosen, limit)
    gone = sa.delete(job).where(members(table_of(job).c.id, ids)).execution_options(**UNSYNCHRONIZED)
    return gone.add_cte(*delete_notes(ids, job=job))


def postpone_purge(*where: Criterion, by: timedelta, job: type[JobMixin] = Job) -> sa.Executable:
    """Put off the deletion of finished jobs by this time."""
    later = in_seconds(by.total_seconds(), name="delay_seconds")
    columns = table_of(job).c
    return sa.update(job).where(*where).values(purge_at=later).returning(columns.id).execution_options(**UNSYNCHRONIZED)


def refuse_at_once() -> sa.Executable:
    """Let a deferred foreign key refuse a DELETE at once, and not at the commit, where it would undo the whole transaction."""
    return sa.text("SET CONSTRAINTS ALL IMMEDIATE")


def limit_statements(seconds: float) -> sa.Executable:
    """Give up the statements of this transaction after `seconds`."""
    return sa.select(sa.func.set_config("statement_timeout", f"{int(seconds * 1000)}ms", True))


# ---- Deleting the jobs whose retention is over.

logger = get_logger(__name__)


class Pruned(NamedTuple):
    """How many jobs a page of pruning has deleted or moved, and the latest time among them, in seconds since 1970."""

    jobs: int
    reached: float


class Pruning(StorePart):
    """Deleting pages of jobs, and stepping over a job that cannot be deleted.

    `archive`: whether there are archived tasks, whose jobs are moved to the archive then; without it they are left. A page fails if the
    archive has no month for a job (`is_month_missing`): then call `make_months_of_page`.
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
        """Delete at most `limit` jobs whose retention is over, from those on whose retention ended at `after`.

        The DELETE is given up after `seconds`. A single row that cannot be deleted keeps the others, too: the error is raised, and a
        smaller `limit` may work; `prune_first` steps over such a row.
        """
        _refuse_soon(connection, seconds)
        if archive:
            jobs, reached = connection.execute(move_page(after=after, limit=limit, job=self.job)).one()
            return Pruned(jobs, after if reached is None else reached)
        gone = connection.execute(prune_page(after=after, limit=limit, job=self.job)).all()
        return Pruned(len(gone), max((row.purge_at for row in gone), default=after))

    def make_months_of_page(self, connection: sa.Connection, *, limit: int, after: float = FIRST_TIME) -> int:
        """Make the months of the archive that the next page needs; how many were missing."""
        return int(connection.scalar(make_months_of_page(after=after, limit=limit, job=self.job)) or 0)

    def prune_first(
        self,
        connection: sa.Connection,
        *,
        seconds: float | None = None,
        after: float = FIRST_TIME,
        archive: bool = False,
        months: bool = False,
    ) -> bool | None:
        """Delete the job whose retention ended first. Returns whether it could be deleted; None if there is no such job.

        A job stays that a foreign key of the application needs, or that cannot be deleted in time: its deletion is put off by a day,
        with a warning. Not where the archive is locked as a whole, which is no job's fault: then the error is raised.

        `months`: make the month of the archive that the job needs, too. A job whose month cannot be made stays as well.
        """
        job = self.job
        # Locked to the end: another worker must not put off the next job in its place.
        first: int | None = connection.scalars(first_over(after=after, archive=archive, job=job)).first()
        if first is None:
            return None
        this = job.__table__.c.id == first
        if months:
            moved = sa.select(job.__table__.c.id).where(this, sa.not_(is_not_archived(job)))
            connection.execute(make_months_of(moved, job=job))
        try:
            with connection.begin_nested():
                _refuse_soon(connection, seconds)
                if archive:
                    connection.execute(move_this(this, job=self.job))
                else:
                    connection.execute(prune_jobs(this, job=job))
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
    """Let a DELETE that cannot be done fail at once, and within `seconds`."""
    connection.execute(refuse_at_once())
    if seconds is not None:
        connection.execute(limit_statements(seconds))
