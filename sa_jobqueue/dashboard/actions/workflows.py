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
from ..request import Look, Missing
from .base import Deed, Done

_ONE: sa.ColumnElement[int] = sa.literal_column("1")
BROKEN = (JobStatus.FAILED, JobStatus.CANCELLED)


def workflow_of(look: Look) -> type[WorkflowRow]:
    """The mapped class of the workflows."""
    return look.options.beside.workflow


def reached_workflows(look: Look) -> list[sa.ColumnElement[bool]]:
    """The criteria of the workflows that the viewer may see: those with a job of theirs."""
    mine = look.mine()
    if not mine:
        return []
    job, workflow = look.job, workflow_of(look)
    return [sa.select(_ONE).where(job.workflow_id == workflow.id, *mine).correlate(workflow).exists()]


def _of_others(look: Look) -> sa.ColumnElement[bool]:
    """Whether a workflow has a job that the viewer may not see."""
    job, workflow, mine = look.job, workflow_of(look), look.mine()
    if not mine:
        return sa.false()
    not_mine = sa.not_(sa.func.coalesce(sa.and_(sa.true(), *mine), sa.false()))
    return sa.select(_ONE).where(job.workflow_id == workflow.id, not_mine).correlate(workflow).exists()


def found_workflow(look: Look, id: str) -> Any:
    """The workflow of this id, and `now`. Raises BadInput, and Missing."""
    workflow = workflow_of(look)
    row = look.connection.execute(
        sa.select(
            workflow.id, workflow.name, workflow.status, workflow.created_at, workflow.finished_at, workflow.deadline_at,
            workflow.paused_at, workflow.cancelled_at, workflow.purge_at, workflow.fail_fast, workflow.reason,
            sa.func.now().label("now"),
        ).where(workflow.id == as_id("id", id), *reached_workflows(look))
    ).one_or_none()  # fmt: skip
    if row is None:
        raise Missing(f"There is no workflow {id}.")
    return row


def may_change(look: Look, id: int) -> bool:
    """Whether all jobs of the workflow are the viewer's."""
    if not look.mine():
        return True
    workflow = workflow_of(look)
    return not look.connection.scalar(sa.select(_of_others(look)).where(workflow.id == id))


def _to_change(look: Look) -> int:
    row = found_workflow(look, look.query.one("id"))
    if not may_change(look, row.id):
        raise Missing("This workflow has jobs that you may not see, so you may not change it.")
    return int(row.id)


def _deed(
    name: str,
    label: str,
    done: str,
    needs: Action,
    build: Callable[[Look, int], sa.Executable],
    *,
    unit: str = "workflow",
    count: Callable[[Look], int] | None = None,
    question: str = "",
    target: tuple[str, ...] = ("id",),
) -> Deed:
    def do(look: Look) -> Done:
        return Done(len(look.connection.scalars(build(look, _to_change(look))).all()))

    return Deed(name, label, done, needs, do, count, question, count is not None, target=target, unit=unit)


def _live_jobs(look: Look) -> int:
    """How many jobs of the workflow have not ended, up to a cap."""
    job = look.job
    live = [status for status in JobStatus if status not in FINISHED]
    some = sa.select(_ONE).where(job.workflow_id == _to_change(look), status_in(job.status, live)).limit(CAP)
    return look.connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0


def _cancel(look: Look, id: int) -> sa.Executable:
    reason = f"the workflow was cancelled by {look.access.who or 'an operator'}"
    return cancel_workflows(id, reason=reason, schema=schema_of(look.job))


def _retry_node(look: Look, id: int) -> sa.Executable:
    node = look.query.id("node")
    if node is None:
        raise BadInput("node", "", "the id of a job of the workflow")
    if (parent := lacks_parent(look, [node]).get(node)) is not None:
        raise BadInput(
            "node",
            str(node),
            f"a job that has all it needs: job {parent} before it has not completed. Retry from that one",
        )
    return retry_workflow(id, from_node=node, schema=schema_of(look.job))


def reopened(look: Look, ids: Sequence[int]) -> list[int]:
    """Retry those of these jobs because of which others of their workflows were cancelled, and these. Returns the ids of all that come back.

    Call it before `retry_jobs`: it locks a workflow's row, and then its jobs.
    """
    if not look.access.may("retry_workflow"):
        return []
    job, workflow = look.job, workflow_of(look)
    mine = (
        sa.select(job.id)
        .join(workflow, workflow.id == job.workflow_id)
        .where(job.id.in_(ids), sa.not_(_of_others(look)))
    )
    if not (members := look.connection.scalars(mine).all()):
        return []
    return list(look.connection.scalars(reopen_below(members, job=job)))


def lacks_parent(look: Look, ids: Sequence[int]) -> dict[int, int]:
    """Of these jobs of workflows, those that would be cancelled again at once, and for each a job before it that has failed or was cancelled."""
    job, its = look.job, look.options.beside.dependency
    statement = (
        sa.select(its.child_id, sa.func.min(its.parent_id).label("parent_id"))
        .join(job, job.id == its.parent_id)
        .where(its.child_id.in_(ids), its.policy == "cancel", status_in(job.status, BROKEN))
        .group_by(its.child_id)
    )
    return {row.child_id: row.parent_id for row in look.connection.execute(statement)}


WORKFLOW_DEEDS = {
    deed.name: deed
    for deed in (
        _deed(
            "cancel_workflow", "Cancel the workflow", "Cancelled {n}: what waited has ended, and what runs is asked to stop.",
            "cancel_workflow", _cancel, count=_live_jobs,
            question="Cancel this workflow? Jobs that have not ended: {n}. What runs is asked to stop.",
        ),
        _deed(
            "pause_workflow", "Pause the workflow", "Paused {n}: no more of its jobs are started.", "pause",
            lambda look, flow: pause_workflows(flow, schema=schema_of(look.job)),
        ),
        _deed(
            "resume_workflow", "Resume the workflow", "Resumed {n}.", "pause",
            lambda look, flow: resume_workflows(flow, schema=schema_of(look.job)),
        ),
        _deed(
            "retry_workflow", "Retry what failed", "Retried {n}: each waits for those before it again.", "retry_workflow",
            lambda look, flow: retry_workflow(flow, schema=schema_of(look.job)), unit="job",
        ),
        _deed(
            "retry_node", "Retry from here", "Retried {n}: this one, and those that were cancelled because of it.",
            "retry_workflow", _retry_node, unit="job", target=("id", "node"),
        ),
    )
}  # fmt: skip
