"""What operators see of all workflows: how many there are, and which do not move on.

Each statement reads indexes, and stops counting at a cap: so it takes milliseconds, however many workflows, members and events there are.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ...models import Job, JobMixin, WorkflowEvent, WorkflowRow
from ..depths import CAP
from ..parts import epoch, table_of

__all__ = ["BEHIND", "count_workflows", "paused_workflows", "workflows_behind"]

#: Workflows that do not move on are counted up to this number.
BEHIND = 101
#: Workflows with events that are looked at for that: paused ones may be in the way.
_LOOKED = 1_001
#: Of a workflow, the events whose time is looked at: most of the first ones are of jobs that have ended.
_FIRST = 10
#: Paused workflows that are named.
_NAMED = 100

_ONE: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)


def count_workflows(
    *, cap: int = CAP, workflow: type[WorkflowRow] = WorkflowRow, event: type[WorkflowEvent] = WorkflowEvent
) -> sa.Executable:
    """One row: whether workflows `exist`; how many are `running`, `paused`, `overdue` (their deadline is over, and they have not
    ended) and `failed`, and how many `events` were not read yet, each counted up to `cap`; and the `seconds` since the oldest running one was made.
    """
    columns, happened = table_of(workflow).c, table_of(event).c
    most = sa.bindparam("cap", cap, sa.Integer)
    lives, runs = columns.finished_at.is_(None), columns.paused_at.is_(None)

    def number(page: sa.Select[Any]) -> sa.ScalarSelect[int]:
        return sa.select(sa.func.count()).select_from(page.limit(most).subquery("page")).scalar_subquery()

    oldest = sa.select(columns.created_at).where(lives, runs).order_by(columns.created_at).limit(_ONE).scalar_subquery()
    return sa.select(
        sa.select(columns.id).exists().label("exist"),
        number(sa.select(_ONE).where(lives, runs).order_by(columns.created_at)).label("running"),
        number(sa.select(_ONE).where(lives, columns.paused_at.is_not(None)).order_by(columns.paused_at)).label("paused"),
        number(sa.select(_ONE).where(lives, columns.deadline_at <= sa.func.now()).order_by(columns.deadline_at)).label("overdue"),
        number(sa.select(_ONE).where(columns.status == sa.literal_column("'failed'")).order_by(columns.finished_at)).label("failed"),
        number(sa.select(_ONE).select_from(table_of(event)).order_by(happened.workflow_id, happened.id)).label("events"),
        _seconds_since(oldest).label("seconds"),
    )  # fmt: skip


def workflows_behind(
    *,
    limit: int = BEHIND,
    looked: int = _LOOKED,
    job: type[JobMixin] = Job,
    workflow: type[WorkflowRow] = WorkflowRow,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> sa.Executable:
    """A row per workflow that has something to read and is not paused, the first `limit`, among the first `looked` that have some: its
    `id`, and the `seconds` since the first of it happened.

    The time is that of the job's end; it is NULL where the first events are of no job that has ended, as after a change by an operator.
    """
    jobs, happened, columns = table_of(job).c, table_of(event).c, table_of(workflow).c

    def first(*after: sa.ColumnElement[bool]) -> sa.Select[Any]:
        return sa.select(happened.workflow_id).where(*after).order_by(happened.workflow_id).limit(_ONE)

    # By workflow, not by event: many of one hide no other.
    start = sa.select(first().scalar_subquery().label("id"), _ONE.label("number"))
    flow = start.cte("flow", recursive=True)
    following = first(happened.workflow_id > flow.c.id).correlate(flow).scalar_subquery()
    more = sa.select(following, flow.c.number + _ONE).where(
        flow.c.id.is_not(None), flow.c.number < sa.bindparam("looked", looked, sa.Integer)
    )
    flow = flow.union_all(more)
    # OFFSET 0 is a fence: each is looked up by its id.
    fence: sa.ColumnElement[Any] = sa.literal_column("0")
    goes_on = (
        sa.select(columns.id)
        .where(columns.id == flow.c.id, sa.or_(columns.paused_at.is_(None), columns.cancelled_at.is_not(None)))
        .offset(fence)
        .correlate(flow)
        .exists()
    )
    behind = sa.select(flow.c.id).where(goes_on).limit(sa.bindparam("most", limit, sa.Integer)).subquery("behind")
    page = (
        sa.select(happened.job_id)
        .where(happened.workflow_id == behind.c.id)
        .order_by(happened.workflow_id, happened.id)
        .limit(sa.literal_column(str(_FIRST)))
        .correlate(behind)
        .subquery("page")
    )
    ended = sa.select(jobs.finished_at).where(jobs.id == page.c.job_id).offset(fence).correlate(page).scalar_subquery()
    since = sa.select(sa.func.min(ended).label("first")).select_from(page).correlate(behind).lateral("since")
    seconds = _seconds_since(since.c.first).label("seconds")
    return sa.select(behind.c.id, seconds).select_from(behind.join(since, sa.true()))


def paused_workflows(*, seconds: float, workflow: type[WorkflowRow] = WorkflowRow) -> sa.Executable:
    """The ids of workflows that have been paused for so long, the longest first; 100 at most."""
    columns = table_of(workflow).c
    return (
        sa.select(columns.id)
        .where(columns.finished_at.is_(None), columns.paused_at <= sa.func.now() - _interval(seconds))
        .order_by(columns.paused_at)
        .limit(sa.literal_column(str(_NAMED)))
    )


def _interval(seconds: float) -> sa.ColumnElement[Any]:
    return sa.bindparam("paused_seconds", seconds, sa.Float) * sa.literal_column("interval '1 second'")


def _seconds_since(time: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    return sa.type_coerce(epoch(sa.func.now() - time), sa.Float)
