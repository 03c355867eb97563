"""What is done to workflows. Whoever may see some jobs of a workflow sees it; only who may see all of them may change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from ...models import WorkflowRow, schema_of, status_in
from ...rules.lifecycle import FINISHED, JobStatus
from ...sql.readings.depths import CAP
from ...sql.workflows.actions import reopen_below
from ...statements import cancel_workflows, pause_workflows, resume_workflows, retry_workflow
from ..access import Action
from ..query import as_id
from ..refusals import BadInput
from ..request import Missing, PageContext
from . import Done, PageAction

_ONE: sa.ColumnElement[int] = sa.literal_column("1")
BROKEN = (JobStatus.FAILED, JobStatus.CANCELLED)


def workflow_of(context: PageContext) -> type[WorkflowRow]:
    """The mapped class of the workflows."""
    return context.options.beside.workflow


def reached_workflows(context: PageContext) -> list[sa.ColumnElement[bool]]:
    """The criteria of the workflows that the viewer may see: those with a job of theirs."""
    mine = context.mine()
    if not mine:
        return []
    job, workflow = context.job, workflow_of(context)
    return [sa.select(_ONE).where(job.workflow_id == workflow.id, *mine).correlate(workflow).exists()]


def _of_others(context: PageContext) -> sa.ColumnElement[bool]:
    """Whether a workflow has a job that the viewer may not see."""
    job, workflow, mine = context.job, workflow_of(context), context.mine()
    if not mine:
        return sa.false()
    not_mine = sa.not_(sa.func.coalesce(sa.and_(sa.true(), *mine), sa.false()))
    return sa.select(_ONE).where(job.workflow_id == workflow.id, not_mine).correlate(workflow).exists()


def found_workflow(context: PageContext, id: str) -> Any:
    """The workflow of this id, and `now`. Raises BadInput, and Missing."""
    workflow = workflow_of(context)
    row = context.connection.execute(
        sa.select(
            workflow.id, workflow.name, workflow.status, workflow.created_at, workflow.finished_at, workflow.deadline_at,
            workflow.paused_at, workflow.cancelled_at, workflow.purge_at, workflow.fail_fast, workflow.reason,
            sa.func.now().label("now"),
        ).where(workflow.id == as_id("id", id), *reached_workflows(context))
    ).one_or_none()  # fmt: skip
    if row is None:
        raise Missing(f"There is no workflow {id}.")
    return row


def may_change(context: PageContext, id: int) -> bool:
    """Whether all jobs of the workflow are the viewer's."""
    if not context.mine():
        return True
    workflow = workflow_of(context)
    return not context.connection.scalar(sa.select(_of_others(context)).where(workflow.id == id))


def _to_change(context: PageContext) -> int:
    row = found_workflow(context, context.query.one("id"))
    if not may_change(context, row.id):
        raise Missing("This workflow has jobs that you may not see, so you may not change it.")
    return int(row.id)


def _action(
    name: str,
    label: str,
    done: str,
    needs: Action,
    build: Callable[[PageContext, int], sa.Executable],
    *,
    unit: str = "workflow",
    count: Callable[[PageContext], int] | None = None,
    question: str = "",
    target: tuple[str, ...] = ("id",),
) -> PageAction:
    def do(context: PageContext) -> Done:
        return Done(len(context.connection.scalars(build(context, _to_change(context))).all()))

    return PageAction(name, label, done, needs, do, count, question, count is not None, target=target, unit=unit)


def _live_jobs(context: PageContext) -> int:
    """How many jobs of the workflow have not ended, up to a cap."""
    job = context.job
    live = [status for status in JobStatus if status not in FINISHED]
    some = sa.select(_ONE).where(job.workflow_id == _to_change(context), status_in(job.status, live)).limit(CAP)
    return context.connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0


def _cancel(context: PageContext, id: int) -> sa.Executable:
    reason = f"the workflow was cancelled by {context.access.who or 'an operator'}"
    return cancel_workflows(id, reason=reason, schema=schema_of(context.job))


def _retry_node(context: PageContext, id: int) -> sa.Executable:
    node = context.query.id("node")
    if node is None:
        raise BadInput("node", "", "the id of a job of the workflow")
    if (parent := lacks_parent(context, [node]).get(node)) is not None:
        raise BadInput(
            "node",
            str(node),
            f"a job that has all it needs: job {parent} before it has not completed. Retry from that one",
        )
    return retry_workflow(id, from_node=node, schema=schema_of(context.job))


def reopened(context: PageContext, ids: Sequence[int]) -> list[int]:
    """Retry those of these jobs because of which others of their workflows were cancelled, and these. Returns the ids of all that come back.

    Call it before `retry_jobs`: it locks a workflow's row, and then its jobs.
    """
    if not context.access.may("retry_workflow"):
        return []
    job, workflow = context.job, workflow_of(context)
    mine = (
        sa.select(job.id)
        .join(workflow, workflow.id == job.workflow_id)
        .where(job.id.in_(ids), sa.not_(_of_others(context)))
    )
    if not (members := context.connection.scalars(mine).all()):
        return []
    return list(context.connection.scalars(reopen_below(members, job=job)))


def lacks_parent(context: PageContext, ids: Sequence[int]) -> dict[int, int]:
    """Of these jobs of workflows, those that would be cancelled again at once, and for each a job before it that has failed or was cancelled."""
    job, its = context.job, context.options.beside.dependency
    statement = (
        sa.select(its.child_id, sa.func.min(its.parent_id).label("parent_id"))
        .join(job, job.id == its.parent_id)
        .where(its.child_id.in_(ids), its.policy == "cancel", status_in(job.status, BROKEN))
        .group_by(its.child_id)
    )
    return {row.child_id: row.parent_id for row in context.connection.execute(statement)}


WORKFLOW_ACTIONS = {
    action.name: action
    for action in (
        _action(
            "cancel_workflow", "Cancel the workflow", "Cancelled {n}: what waited has ended, and what runs is asked to stop.",
            "cancel_workflow", _cancel, count=_live_jobs,
            question="Cancel this workflow? Jobs that have not ended: {n}. What runs is asked to stop.",
        ),
        _action(
            "pause_workflow", "Pause the workflow", "Paused {n}: no more of its jobs are started.", "pause",
            lambda context, flow: pause_workflows(flow, schema=schema_of(context.job)),
        ),
        _action(
            "resume_workflow", "Resume the workflow", "Resumed {n}.", "pause",
            lambda context, flow: resume_workflows(flow, schema=schema_of(context.job)),
        ),
        _action(
            "retry_workflow", "Retry what failed", "Retried {n}: each waits for those before it again.", "retry_workflow",
            lambda context, flow: retry_workflow(flow, schema=schema_of(context.job)), unit="job",
        ),
        _action(
            "retry_node", "Retry from here", "Retried {n}: this one, and those that were cancelled because of it.",
            "retry_workflow", _retry_node, unit="job", target=("id", "node"),
        ),
    )
}  # fmt: skip
