"""Deleting workflows whose time is over: first their members, page by page, then the rest of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ...lifecycle import FINISHED
from ...models import (
    ArchivedTask,
    Job,
    JobMixin,
    LogPart,
    Progress,
    WorkflowCallback,
    WorkflowDependency,
    WorkflowEvent,
    WorkflowJoin,
    WorkflowRow,
    status_in,
)
from ..admin import UNSYNCHRONIZED
from ..archive import is_not_archived, make_months_of, move_jobs
from ..notes import delete_notes
from ..parts import array, members, table_of

__all__ = [
    "forget_workflows",
    "make_months_of_members",
    "move_members",
    "postpone_workflow",
    "prune_members",
    "workflows_over",
]


def _is_over(workflow: type[WorkflowRow], event: type[WorkflowEvent]) -> sa.ColumnElement[bool]:
    """Whether its time is over, and nothing has happened in it since, such as a retry of one of its jobs."""
    unread = sa.select(event.id).where(event.workflow_id == workflow.id).correlate(table_of(workflow))
    return sa.and_(workflow.purge_at <= sa.func.now(), sa.not_(unread.exists()))


def workflows_over(
    *, limit: int, workflow: type[WorkflowRow] = WorkflowRow, event: type[WorkflowEvent] = WorkflowEvent
) -> sa.Executable:
    """The ids of workflows whose time to be kept is over."""
    return (
        sa.select(workflow.id)
        .where(_is_over(workflow, event))
        .order_by(workflow.purge_at)
        .limit(sa.bindparam("page", limit, sa.Integer))
    )


def prune_members(
    id: int,
    *,
    limit: int,
    job: type[JobMixin] = Job,
    progress: type[Progress] = Progress,
    log: type[LogPart] = LogPart,
    dependency: type[WorkflowDependency] = WorkflowDependency,
    workflow: type[WorkflowRow] = WorkflowRow,
    event: type[WorkflowEvent] = WorkflowEvent,
    archived_task: type[ArchivedTask] = ArchivedTask,
) -> sa.Executable:
    """Delete a page of the members of a workflow whose time is over, and what each waited for. Returns their ids.

    None is deleted if the workflow has come back meanwhile; and none of archived tasks: a worker may not have heard of these yet.
    """
    columns = table_of(job).c
    plain = _members(id, limit, job, workflow, event).where(is_not_archived(job, archived_task=archived_task))
    ids = _locked(plain)
    gone = sa.delete(job).where(members(columns.id, ids)).execution_options(**UNSYNCHRONIZED)
    also = (*delete_notes(ids, progress=progress, log=log), _edges(ids, dependency))
    return gone.add_cte(*also).returning(columns.id)


def move_members(
    id: int,
    *,
    limit: int,
    job: type[JobMixin] = Job,
    dependency: type[WorkflowDependency] = WorkflowDependency,
    workflow: type[WorkflowRow] = WorkflowRow,
    event: type[WorkflowEvent] = WorkflowEvent,
    **beside: Any,
) -> sa.Executable:
    """The same where there are archived tasks: their jobs are moved to the archive.

    `beside`: the other tables of `move_jobs`, which says what it returns.
    """
    ids = _locked(_members(id, limit, job, workflow, event))
    return move_jobs(ids, job=job, **beside).add_cte(_edges(ids, dependency))


def make_months_of_members(id: int, *, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Make the months of the archive that a page of these members needs; see `make_months_of`."""
    columns = table_of(job).c
    page = sa.select(columns.id).where(
        columns.workflow_id == sa.bindparam("of_workflow", id, sa.BigInteger), status_in(columns.status, FINISHED)
    )
    return make_months_of(page.order_by(columns.id).limit(sa.bindparam("page", limit, sa.Integer)), job=job)


def _members(
    id: int, limit: int, job: type[JobMixin], workflow: type[WorkflowRow], event: type[WorkflowEvent]
) -> sa.Select[Any]:
    """A page of the members, if the workflow's time is over; it is locked then."""
    columns = table_of(job).c
    flow = sa.bindparam("of_workflow", id, sa.BigInteger)
    over = (
        sa.select(workflow.id)
        .where(workflow.id == flow, _is_over(workflow, event))
        .with_for_update(key_share=True, skip_locked=True)
        .cte("over")
        .prefix_with("MATERIALIZED")
    )
    return (
        sa.select(columns.id)
        .where(members(columns.workflow_id, sa.select(over.c.id)), status_in(columns.status, FINISHED))
        .order_by(columns.id)
        .limit(sa.bindparam("page", limit, sa.Integer))
    )


def _locked(page: sa.Select[Any]) -> sa.Select[Any]:
    return sa.select(page.with_for_update().cte("chosen").prefix_with("MATERIALIZED").c.id)


def _edges(ids: sa.Select[Any], dependency: type[WorkflowDependency]) -> sa.CTE:
    """What deletes what these members waited for."""
    return sa.delete(dependency).where(members(table_of(dependency).c.child_id, ids)).cte("edges")


def forget_workflows(
    ids: Sequence[int],
    *,
    job: type[JobMixin] = Job,
    workflow: type[WorkflowRow] = WorkflowRow,
    callback: type[WorkflowCallback] = WorkflowCallback,
    join: type[WorkflowJoin] = WorkflowJoin,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> sa.Executable:
    """Delete workflows whose time is over and that have no members left, and what else there is of them. Returns their ids."""
    columns = table_of(job).c
    has_members = sa.select(columns.id).where(columns.workflow_id == workflow.id).correlate(table_of(workflow)).exists()
    these = array("workflow_ids", list(ids), sa.BigInteger())
    chosen = (
        sa.select(workflow.id)
        .where(workflow.id == sa.func.any(these), _is_over(workflow, event), sa.not_(has_members))
        .with_for_update()
    )
    found = chosen.cte("chosen").prefix_with("MATERIALIZED")
    mine = sa.select(found.c.id)
    also = [
        sa.delete(one).where(members(table_of(one).c.workflow_id, mine)).cte(name)
        for one, name in ((callback, "callbacks"), (join, "joins"), (event, "events"))
    ]
    gone = sa.delete(workflow).where(members(table_of(workflow).c.id, mine)).execution_options(**UNSYNCHRONIZED)
    return gone.add_cte(*also).returning(workflow.id)


def postpone_workflow(id: int, *, workflow: type[WorkflowRow] = WorkflowRow) -> sa.Executable:
    """A workflow that could not be deleted is due again after a day."""
    later = sa.func.now() + sa.literal_column("interval '1 day'")
    due = sa.update(workflow).where(sa.and_(workflow.id == sa.bindparam("of_workflow", id, sa.BigInteger)))
    return due.values(purge_at=later).execution_options(**UNSYNCHRONIZED)
