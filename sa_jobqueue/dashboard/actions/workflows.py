"""Actions on workflows. A viewer who may see some jobs of a workflow sees it; only a viewer who may see all of them may change it."""

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
from ..request import ONE, Missing, PageContext
from . import Done, PageAction

BROKEN = (JobStatus.FAILED, JobStatus.CANCELLED)


def workflow_of(context: PageContext) -> type[WorkflowRow]:
    """The mapped class of the workflows."""
    return context.tables.workflow


def reached_workflows(context: PageContext) -> list[sa.ColumnElement[bool]]:
    """The criteria of the workflows that the viewer may see: they have a job that the viewer may see."""
    mine = context.mine()
    if not mine:
        return []
    job, workflow = context.job, workflow_of(context)
    return [sa.select(ONE).where(job.workflow_id == workflow.id, *mine).correlate(workflow).exists()]


def _of_others(context: PageContext) -> sa.ColumnElement[bool]:
    """Whether a workflow has a job that the viewer may not see."""
    job, workflow, mine = context.job, workflow_of(context), context.mine()
    if not mine:
        return sa.false()
    not_mine = sa.not_(sa.func.coalesce(sa.and_(sa.true(), *mine), sa.false()))
    return sa.select(ONE).where(job.workflow_id == workflow.id, not_mine).correlate(workflow).exists()


def found_workflow(context: PageContext, id: str) -> Any:
    """The workflow with this id, and `now`. Raises BadInput, and Missing."""
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
    """Whether the viewer may see all jobs of the workflow."""
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
    **options: Any,
) -> PageAction:
    def do(context: PageContext) -> Done:
        return Done(len(context.connection.scalars(build(context, _to_change(context))).all()))

    return PageAction(name, label, done, needs, do, unit=unit, **options)


def _live_jobs(context: PageContext) -> int:
    """The number of jobs of the workflow that have not ended, up to a cap."""
    job = context.job
    live = [status for status in JobStatus if status not in FINISHED]
    return context.count(
        sa.select(ONE).where(job.workflow_id == _to_change(context), status_in(job.status, live)).limit(CAP)
    )


def _name(context: PageContext) -> str:
    row = found_workflow(context, context.query.one("id"))
    return f"{row.name} ({row.id})"


def _cancel(context: PageContext, id: int) -> sa.Executable:
    reason = f"the workflow was cancelled by {context.access.who or 'an operator'}"
    return cancel_workflows(id, reason=reason, schema=schema_of(context.job))


def _retry_node(context: PageContext, id: int) -> sa.Executable:
    node = context.query.id("node")
    if node is None:
        raise BadInput("node", "", "the id of a job of the workflow")
    if (parent := lacks_parent(context, [node]).get(node)) is not None:
        expected = f"a job whose parents have completed: its parent, job {parent}, has not. Retry from that job"
        raise BadInput("node", str(node), expected)
    return retry_workflow(id, from_node=node, schema=schema_of(context.job))


def reopened(context: PageContext, ids: Sequence[int]) -> list[int]:
    """Retry jobs among these whose failure cancelled others of their workflows, with the cancelled ones. Returns the ids of all retried jobs.

    Call it before `retry_jobs`: it locks a workflow's row, and then its jobs.
    """
    if not context.access.may("retry_workflow"):
        return []
    job, workflow = context.job, workflow_of(context)
    joined = sa.select(job.id).join(workflow, workflow.id == job.workflow_id)
    members = context.connection.scalars(joined.where(job.id.in_(ids), sa.not_(_of_others(context)))).all()
    return list(context.connection.scalars(reopen_below(members, job=job))) if members else []


def lacks_parent(context: PageContext, ids: Sequence[int]) -> dict[int, int]:
    """The jobs among these that a retry would cancel again at once, each with a parent that has failed or was cancelled."""
    job, dependency = context.job, context.tables.dependency
    statement = (
        sa.select(dependency.child_id, sa.func.min(dependency.parent_id).label("parent_id"))
        .join(job, job.id == dependency.parent_id)
        .where(dependency.child_id.in_(ids), dependency.policy == "cancel", status_in(job.status, BROKEN))
        .group_by(dependency.child_id)
    )
    return {row.child_id: row.parent_id for row in context.connection.execute(statement)}


WORKFLOW_ACTIONS = (
    _action(
        "cancel_workflow", "Cancel the workflow", "Cancelled {n}: waiting jobs have ended, and running jobs are asked to stop.",
        "cancel_workflow", _cancel, count=_live_jobs, careful=True,
        named=_name,
        question="Cancel the workflow {of}? Jobs that have not ended: {n}. Running jobs are asked to stop.",
    ),
    _action(
        "pause_workflow", "Pause the workflow", "Paused {n}: no more of its jobs start.", "pause",
        lambda context, flow: pause_workflows(flow, schema=schema_of(context.job)),
    ),
    _action(
        "resume_workflow", "Resume the workflow", "Resumed {n}.", "pause",
        lambda context, flow: resume_workflows(flow, schema=schema_of(context.job)),
    ),
    _action(
        "retry_workflow", "Retry what failed", "Retried {n}: each waits for its parents again.", "retry_workflow",
        lambda context, flow: retry_workflow(flow, schema=schema_of(context.job)), unit="job",
    ),
    _action(
        "retry_node", "Retry from here", "Retried {n}: this job, and jobs that were cancelled because of it.",
        "retry_workflow", _retry_node, unit="job", target=("id", "node"),
    ),
)  # fmt: skip
