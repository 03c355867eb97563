"""Deleting finished jobs: those that an operator names, and those whose time to be kept is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ..lifecycle import FINISHED
from ..models import ArchivedTask, Job, JobMixin, LogPart, Progress, WorkflowRow, status_in
from .admin import UNSYNCHRONIZED, Criterion, check_criteria
from .archive import is_not_archived, make_months_of, move_jobs
from .beside import with_companions
from .notes import delete_notes
from .parts import FIRST_TIME, epoch_of, in_seconds, members, table_of

__all__ = [
    "first_over",
    "limit_statements",
    "make_months_of_page",
    "move_page",
    "move_this",
    "postpone_purge",
    "prune_jobs",
    "prune_page",
    "refuse_at_once",
]


@with_companions
def prune_jobs(
    *where: Criterion,
    limit: int = 1_000,
    job: type[JobMixin] = Job,
    progress: type[Progress] = Progress,
    log: type[LogPart] = LogPart,
    workflow: type[WorkflowRow] = WorkflowRow,
    archived_task: type[ArchivedTask] = ArchivedTask,
) -> sa.Executable:
    """Delete at most `limit` finished jobs: those that match, or without criteria those whose time to be kept is over.

    Without criteria, jobs of archived tasks are left to the workers, which move them to the archive.

    Not the members of a workflow that goes on: others may need their results. They are deleted with their workflow.

    Rows that another transaction has locked are left for the next time. A row that a foreign key of the application's
    still needs makes the statement fail, as any DELETE would.
    """
    if not isinstance(limit, int):
        raise TypeError(f"limit must be an integer, not {limit!r}")
    if limit < 0:
        raise ValueError(f"limit must be 0 or more, not {limit!r}")
    check_criteria("prune_jobs", where)
    columns = table_of(job).c
    goes_on = sa.select(workflow.id).where(workflow.id == columns.workflow_id, workflow.finished_at.is_(None))
    named = sa.select(columns.id).where(*where, sa.not_(goes_on.correlate(table_of(job)).exists())).order_by(columns.id)
    chosen = named if where else _over(job).where(is_not_archived(job, archived_task=archived_task))
    return _delete_finished(job, chosen, limit, progress=progress, log=log).returning(columns.id)


def prune_page(
    *,
    after: float = FIRST_TIME,
    limit: int,
    job: type[JobMixin] = Job,
    progress: type[Progress] = Progress,
    log: type[LogPart] = LogPart,
    archived_task: type[ArchivedTask] = ArchivedTask,
) -> sa.Executable:
    """Delete a page of the jobs whose time is over, from `after` on, in seconds since 1970. Not those of archived tasks: a worker may
    not have heard of these yet.

    Returns their ids, and the time of each; the next page begins at the last time. Beginning each page at the front would
    walk over all that was deleted before, while a snapshot is held.
    """
    columns = table_of(job).c
    over = _over(job, after=after).where(is_not_archived(job, archived_task=archived_task))
    gone = _delete_finished(job, over, limit, progress=progress, log=log)
    return gone.returning(columns.id, epoch_of(columns.purge_at))


def move_page(*, after: float = FIRST_TIME, limit: int, job: type[JobMixin] = Job, **beside: Any) -> sa.Executable:
    """The same where there are archived tasks: their jobs are moved to the archive, the others are deleted.

    `beside`: the other tables of `move_jobs`, which says what it returns.
    """
    return move_jobs(_ids(job, _over(job, after=after), limit), job=job, **beside)


def make_months_of_page(*, after: float = FIRST_TIME, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Make the months of the archive that this page needs; see `make_months_of`."""
    page = _over(job, after=after).where(_is_finished(job)).limit(sa.bindparam("page", limit, sa.Integer))
    return make_months_of(page, job=job)


def move_this(*where: Criterion, job: type[JobMixin] = Job, **beside: Any) -> sa.Executable:
    """Move or delete the one finished job that matches."""
    return move_jobs(_ids(job, sa.select(table_of(job).c.id).where(*where), 1), job=job, **beside)


def first_over(
    *,
    after: float = FIRST_TIME,
    archive: bool = False,
    job: type[JobMixin] = Job,
    archived_task: type[ArchivedTask] = ArchivedTask,
) -> sa.Select[Any]:
    """The job whose time has been over for longest, from `after` on, locked. `archive`: also one of an archived task."""
    over = _over(job, after=after)
    if not archive:
        over = over.where(is_not_archived(job, archived_task=archived_task))
    return _locked_to_delete(job, over).limit(1)


def _over(job: type[JobMixin], *, after: float | None = None) -> sa.Select[Any]:
    # Sorted by the time alone, as the index is: a page would otherwise read and sort all jobs of one time.
    columns = table_of(job).c
    over = sa.select(columns.id).where(columns.purge_at <= sa.func.now()).order_by(columns.purge_at)
    return (
        over
        if after is None
        else over.where(columns.purge_at >= sa.func.to_timestamp(sa.bindparam("after", after, sa.Float)))
    )


def _is_finished(job: type[JobMixin]) -> sa.ColumnElement[bool]:
    return status_in(table_of(job).c.status, FINISHED)


def _locked_to_delete(job: type[JobMixin], chosen: sa.Select[Any]) -> sa.Select[Any]:
    return chosen.where(_is_finished(job)).with_for_update(skip_locked=True)


def _ids(job: type[JobMixin], chosen: sa.Select[Any], limit: int) -> sa.Select[Any]:
    """The ids of at most `limit` of those jobs, locked."""
    page = _locked_to_delete(job, chosen).limit(sa.bindparam("page", limit, sa.Integer))
    return sa.select(page.cte("chosen").prefix_with("MATERIALIZED").c.id)


def _delete_finished(
    job: type[JobMixin], chosen: sa.Select[Any], limit: int, *, progress: type[Progress], log: type[LogPart]
) -> sa.Delete:
    """Delete those jobs, and with them what is kept of what they said."""
    ids = _ids(job, chosen, limit)
    gone = sa.delete(job).where(members(table_of(job).c.id, ids)).execution_options(**UNSYNCHRONIZED)
    return gone.add_cte(*delete_notes(ids, progress=progress, log=log))


def postpone_purge(*where: Criterion, by: timedelta, job: type[JobMixin] = Job) -> sa.Executable:
    """Finished jobs that could not be deleted are due again after `by`."""
    later = in_seconds(by.total_seconds(), name="delay_seconds")
    columns = table_of(job).c
    return sa.update(job).where(*where).values(purge_at=later).returning(columns.id).execution_options(**UNSYNCHRONIZED)


def refuse_at_once() -> sa.Executable:
    """A deferred foreign key refuses a DELETE at once. Else it would do so only at the commit, and with it everything."""
    return sa.text("SET CONSTRAINTS ALL IMMEDIATE")


def limit_statements(seconds: float) -> sa.Executable:
    """The statements of this transaction are given up after `seconds`."""
    return sa.select(sa.func.set_config("statement_timeout", f"{int(seconds * 1000)}ms", True))
