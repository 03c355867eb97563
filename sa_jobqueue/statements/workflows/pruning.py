"""Deleting workflows whose time is over: first their members, page by page, then the rest of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Executable,
    Integer,
    Select,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    not_,
    select,
    update,
)

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


def _is_over(workflow: type[WorkflowRow], event: type[WorkflowEvent]) -> ColumnElement[bool]:
    """Whether its time is over, and nothing has happened in it since, such as a retry of one of its jobs."""
    unread = select(event.id).where(event.workflow_id == workflow.id).correlate(table_of(workflow))
    return and_(workflow.purge_at <= func.now(), not_(unread.exists()))


def workflows_over(
    *, limit: int, workflow: type[WorkflowRow] = WorkflowRow, event: type[WorkflowEvent] = WorkflowEvent
) -> Executable:
    """The ids of workflows whose time to be kept is over."""
    return (
        select(workflow.id)
        .where(_is_over(workflow, event))
        .order_by(workflow.purge_at)
        .limit(bindparam("page", limit, Integer))
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
) -> Executable:
    """Delete a page of the members of a workflow whose time is over, and what each waited for. Returns their ids.

    None is deleted if the workflow has come back meanwhile; and none of archived tasks: a worker may not have heard of these yet.
    """
    columns = table_of(job).c
    plain = _members(id, limit, job, workflow, event).where(is_not_archived(job, archived_task=archived_task))
    ids = _locked(plain)
    gone = delete(job).where(members(columns.id, ids)).execution_options(**UNSYNCHRONIZED)
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
) -> Executable:
    """The same where there are archived tasks: their jobs are moved to the archive.

    `beside`: the other tables of `move_jobs`, which says what it returns.
    """
    ids = _locked(_members(id, limit, job, workflow, event))
    return move_jobs(ids, job=job, **beside).add_cte(_edges(ids, dependency))


def make_months_of_members(id: int, *, limit: int, job: type[JobMixin] = Job) -> Executable:
    """Make the months of the archive that a page of these members needs; see `make_months_of`."""
    columns = table_of(job).c
    page = select(columns.id).where(
        columns.workflow_id == bindparam("of_workflow", id, BigInteger), status_in(columns.status, FINISHED)
    )
    return make_months_of(page.order_by(columns.id).limit(bindparam("page", limit, Integer)), job=job)


def _members(
    id: int, limit: int, job: type[JobMixin], workflow: type[WorkflowRow], event: type[WorkflowEvent]
) -> Select[Any]:
    """A page of the members, if the workflow's time is over; it is locked then."""
    columns = table_of(job).c
    flow = bindparam("of_workflow", id, BigInteger)
    over = (
        select(workflow.id)
        .where(workflow.id == flow, _is_over(workflow, event))
        .with_for_update(key_share=True, skip_locked=True)
        .cte("over")
        .prefix_with("MATERIALIZED")
    )
    return (
        select(columns.id)
        .where(members(columns.workflow_id, select(over.c.id)), status_in(columns.status, FINISHED))
        .order_by(columns.id)
        .limit(bindparam("page", limit, Integer))
    )


def _locked(page: Select[Any]) -> Select[Any]:
    return select(page.with_for_update().cte("chosen").prefix_with("MATERIALIZED").c.id)


def _edges(ids: Select[Any], dependency: type[WorkflowDependency]) -> CTE:
    """What deletes what these members waited for."""
    return delete(dependency).where(members(table_of(dependency).c.child_id, ids)).cte("edges")


def forget_workflows(
    ids: Sequence[int],
    *,
    job: type[JobMixin] = Job,
    workflow: type[WorkflowRow] = WorkflowRow,
    callback: type[WorkflowCallback] = WorkflowCallback,
    join: type[WorkflowJoin] = WorkflowJoin,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> Executable:
    """Delete workflows whose time is over and that have no members left, and what else there is of them. Returns their ids."""
    columns = table_of(job).c
    has_members = select(columns.id).where(columns.workflow_id == workflow.id).correlate(table_of(workflow)).exists()
    these = array("workflow_ids", list(ids), BigInteger())
    chosen = (
        select(workflow.id)
        .where(workflow.id == func.any(these), _is_over(workflow, event), not_(has_members))
        .with_for_update()
    )
    found = chosen.cte("chosen").prefix_with("MATERIALIZED")
    mine = select(found.c.id)
    also = [
        delete(one).where(members(table_of(one).c.workflow_id, mine)).cte(name)
        for one, name in ((callback, "callbacks"), (join, "joins"), (event, "events"))
    ]
    gone = delete(workflow).where(members(table_of(workflow).c.id, mine)).execution_options(**UNSYNCHRONIZED)
    return gone.add_cte(*also).returning(workflow.id)


def postpone_workflow(id: int, *, workflow: type[WorkflowRow] = WorkflowRow) -> Executable:
    """A workflow that could not be deleted is due again after a day."""
    later = func.now() + literal_column("interval '1 day'")
    due = update(workflow).where(and_(workflow.id == bindparam("of_workflow", id, BigInteger)))
    return due.values(purge_at=later).execution_options(**UNSYNCHRONIZED)
