"""What operators see of all workflows: how many there are, and which do not move on.

Each statement reads indexes, and stops counting at a cap: so it takes milliseconds, however many workflows, members and events there are.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    Float,
    Integer,
    ScalarSelect,
    Select,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    true,
    type_coerce,
)

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

_ONE: ColumnElement[int] = literal_column("1", Integer)


def count_workflows(
    *, cap: int = CAP, workflow: type[WorkflowRow] = WorkflowRow, event: type[WorkflowEvent] = WorkflowEvent
) -> Executable:
    """One row: whether workflows `exist`; how many are `running`, `paused`, `overdue` (their deadline is over, and they have not
    ended) and `failed`, and how many `events` were not read yet, each counted up to `cap`; and the `seconds` since the oldest running one was made.
    """
    columns, happened = table_of(workflow).c, table_of(event).c
    most = bindparam("cap", cap, Integer)
    lives, runs = columns.finished_at.is_(None), columns.paused_at.is_(None)

    def number(page: Select[Any]) -> ScalarSelect[int]:
        return select(func.count()).select_from(page.limit(most).subquery("page")).scalar_subquery()

    oldest = select(columns.created_at).where(lives, runs).order_by(columns.created_at).limit(_ONE).scalar_subquery()
    return select(
        select(columns.id).exists().label("exist"),
        number(select(_ONE).where(lives, runs).order_by(columns.created_at)).label("running"),
        number(select(_ONE).where(lives, columns.paused_at.is_not(None)).order_by(columns.paused_at)).label("paused"),
        number(select(_ONE).where(lives, columns.deadline_at <= func.now()).order_by(columns.deadline_at)).label("overdue"),
        number(select(_ONE).where(columns.status == literal_column("'failed'")).order_by(columns.finished_at)).label("failed"),
        number(select(_ONE).select_from(table_of(event)).order_by(happened.workflow_id, happened.id)).label("events"),
        _seconds_since(oldest).label("seconds"),
    )  # fmt: skip


def workflows_behind(
    *,
    limit: int = BEHIND,
    looked: int = _LOOKED,
    job: type[JobMixin] = Job,
    workflow: type[WorkflowRow] = WorkflowRow,
    event: type[WorkflowEvent] = WorkflowEvent,
) -> Executable:
    """A row per workflow that has something to read and is not paused, the first `limit`, among the first `looked` that have some: its
    `id`, and the `seconds` since the first of it happened.

    The time is that of the job's end; it is NULL where the first events are of no job that has ended, as after a change by an operator.
    """
    jobs, happened, columns = table_of(job).c, table_of(event).c, table_of(workflow).c

    def first(*after: ColumnElement[bool]) -> Select[Any]:
        return select(happened.workflow_id).where(*after).order_by(happened.workflow_id).limit(_ONE)

    # By workflow, not by event: many of one hide no other.
    start = select(first().scalar_subquery().label("id"), _ONE.label("number"))
    flow = start.cte("flow", recursive=True)
    following = first(happened.workflow_id > flow.c.id).correlate(flow).scalar_subquery()
    more = select(following, flow.c.number + _ONE).where(
        flow.c.id.is_not(None), flow.c.number < bindparam("looked", looked, Integer)
    )
    flow = flow.union_all(more)
    # OFFSET 0 is a fence: each is looked up by its id.
    fence: ColumnElement[Any] = literal_column("0")
    goes_on = (
        select(columns.id)
        .where(columns.id == flow.c.id, or_(columns.paused_at.is_(None), columns.cancelled_at.is_not(None)))
        .offset(fence)
        .correlate(flow)
        .exists()
    )
    behind = select(flow.c.id).where(goes_on).limit(bindparam("most", limit, Integer)).subquery("behind")
    page = (
        select(happened.job_id)
        .where(happened.workflow_id == behind.c.id)
        .order_by(happened.workflow_id, happened.id)
        .limit(literal_column(str(_FIRST)))
        .correlate(behind)
        .subquery("page")
    )
    ended = select(jobs.finished_at).where(jobs.id == page.c.job_id).offset(fence).correlate(page).scalar_subquery()
    since = select(func.min(ended).label("first")).select_from(page).correlate(behind).lateral("since")
    seconds = _seconds_since(since.c.first).label("seconds")
    return select(behind.c.id, seconds).select_from(behind.join(since, true()))


def paused_workflows(*, seconds: float, workflow: type[WorkflowRow] = WorkflowRow) -> Executable:
    """The ids of workflows that have been paused for so long, the longest first; 100 at most."""
    columns = table_of(workflow).c
    return (
        select(columns.id)
        .where(columns.finished_at.is_(None), columns.paused_at <= func.now() - _interval(seconds))
        .order_by(columns.paused_at)
        .limit(literal_column(str(_NAMED)))
    )


def _interval(seconds: float) -> ColumnElement[Any]:
    return bindparam("paused_seconds", seconds, Float) * literal_column("interval '1 second'")


def _seconds_since(time: ColumnElement[Any]) -> ColumnElement[float]:
    return type_coerce(epoch(func.now() - time), Float)
