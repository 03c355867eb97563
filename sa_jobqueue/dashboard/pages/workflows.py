"""The list of workflows: newest first, a page at a time, with their progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ...models import WorkflowRow
from ...rules.lifecycle import JobStatus
from ...sql.workflows.readings import count_some_members, count_workflows
from ...util.log import one_line
from ...util.urls import mask_passwords
from ..actions.workflows import reached_workflows, workflow_of
from ..refusals import BadInput
from ..request import Page, PageContext

_PAGE = 50
#: The most jobs of each workflow that are counted: 50 workflows take 40 ms.
_COUNTED = 1_001
#: The newest ids, among which names and cancelled workflows are searched, because they have no index.
NEWEST = 100_000

STATES = ("running", "paused", "completed", "failed", "cancelled")


def read_workflows(context: PageContext) -> dict[str, Any]:
    """A page of workflows, with the numbers of their jobs by status."""
    query, workflow = context.query, workflow_of(context)
    state, name, before = query.one("state"), query.one("name"), query.id("before")
    criteria = reached_workflows(context)
    if state:
        criteria.append(_is(state, workflow))
    if name:
        criteria.append(workflow.name == name)
    if is_partly := bool(name) or state == "cancelled":
        criteria.append(workflow.id > sa.select(sa.func.max(workflow.id) - NEWEST).scalar_subquery())
    if before is not None:
        criteria.append(workflow.id < before)
    statement = (
        sa.select(
            workflow.id, workflow.name, workflow.status, workflow.created_at, workflow.finished_at, workflow.paused_at,
            workflow.deadline_at, workflow.reason,
        )
        .where(*criteria)
        .order_by(workflow.id.desc())
        .limit(_PAGE + 1)
    )  # fmt: skip
    rows = context.connection.execute(statement).all()
    shown = rows[:_PAGE]
    counts = counted(context, [row.id for row in shown], _COUNTED)
    return {
        "now": context.now(),
        "workflows": [_shown(row, counts[row.id]) for row in shown],
        "before": shown[-1].id if len(rows) > _PAGE else None,
        "tabs": _tabs(context),
        "filtered": bool(name or state),
        "partly": is_partly,
        "newest": NEWEST,
        # Others may own jobs of a workflow that a viewer of some jobs sees: its page says whether the viewer may change it.
        "may_cancel": context.access.may("cancel_workflow") and not context.mine(),
    }


def _is(state: str, workflow: type[WorkflowRow]) -> sa.ColumnElement[bool]:
    """The condition of the state's index."""
    if state == "running":
        return sa.and_(workflow.finished_at.is_(None), workflow.paused_at.is_(None))
    if state == "paused":
        return sa.and_(workflow.finished_at.is_(None), workflow.paused_at.is_not(None))
    if state not in STATES:
        raise BadInput("state", state, f"one of {', '.join(STATES)}")
    return workflow.status == sa.literal_column(f"'{state}'")


def counted(context: PageContext, ids: Sequence[int], cap: int) -> dict[int, Counter[str]]:
    """The numbers of the viewer's jobs of these workflows by status, up to a cap for each workflow."""
    found: dict[int, Counter[str]] = {workflow_id: Counter() for workflow_id in ids}
    if ids:
        statement = count_some_members(ids, cap=cap, where=context.mine(), job=context.job)
        for row in context.connection.execute(statement):
            found[row.workflow_id][str(row.status)] = row.number
    return found


def _tabs(context: PageContext) -> list[tuple[str, int | None]]:
    """Each state, with the number of workflows if an index can count them, which counts all tenants."""
    numbers: dict[str, int] = {}
    if not context.mine():
        row = context.connection.execute(count_workflows(job=context.job)).one()
        numbers = {"running": row.running, "paused": row.paused, "failed": row.failed}
    return [(state, numbers.get(state)) for state in STATES]


def _shown(row: Any, counts: Counter[str]) -> dict[str, Any]:
    number = counts.total()
    return {
        **row._mapping,  # noqa: SLF001
        "state": state_of_workflow(row),
        "note": one_line(mask_passwords(row.reason or "")),
        "number": number,
        "more": number >= _COUNTED,
        "bar": bar_of(counts),
        "numbers": numbers_of(counts),
    }


def state_of_workflow(row: Any) -> str:
    """The status; or paused."""
    return "paused" if row.paused_at is not None and row.finished_at is None else str(row.status)


#: The order of the bar, from the left: completed, failed, running, waiting jobs.
_BAR = (
    JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.RUNNING, JobStatus.QUEUED, JobStatus.BLOCKED,
)  # fmt: skip


def numbers_of(counts: Counter[str]) -> list[tuple[str, int]]:
    """The numbers by status, in the order of the bar, without zeros."""
    return [(status.value, counts[status.value]) for status in _BAR if counts[status.value]]


def bar_of(counts: Counter[str]) -> list[tuple[str, float, float]]:
    """The parts of a bar that is 100 wide: status, start, width."""
    parts, at, total = list[tuple[str, float, float]](), 0.0, counts.total()
    for status in _BAR:
        if number := counts[status.value]:
            width = 100 * number / total
            parts.append((status.value, round(at, 2), round(width, 2)))
            at += width
    return parts


WORKFLOWS = Page("workflows", "Workflows", "/workflows", read_workflows)
