"""Failed jobs, grouped by task, error and first line, the most frequent first; and the jobs of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ...health.one_job import clamped
from ...models import status_literal
from ...rules.lifecycle import JobStatus
from ...sql.readings.depths import (
    HOURS,
    MOST_GROUPS,
    NEWEST_FAILED,
    class_of,
    extent_of_errors,
    group_errors,
    line_of,
    sign_of,
)
from ...statements import prune_jobs, retry_jobs
from ...util.urls import mask_passwords
from ..actions.jobs import WAITS, action_on_jobs
from ..filters import among_newest
from ..query import Query
from ..refusals import BadInput
from ..request import Page, PageContext

#: The names of the values that identify a group in an address or a form.
_NAMES = ("task", "error", "group")


def _where(context: PageContext) -> list[sa.ColumnElement[bool]]:
    """The viewer's jobs among the newest failed jobs of all viewers, so that the search stays short if most belong to others."""
    return [among_newest(context, JobStatus.FAILED), *mine] if (mine := context.mine()) else []


def groups(
    context: PageContext, *, newest: int = NEWEST_FAILED, most: int = MOST_GROUPS
) -> tuple[Sequence[Any], int, int, int]:
    """The `most` largest groups among the `newest` jobs, the number of all groups, the number of jobs, and their lowest id."""
    where = _where(context)
    statement = group_errors(*where, newest=newest, most=most, job=context.job)
    rows: Sequence[Any] = context.connection.execute(statement).all()
    extent: Any = context.connection.execute(extent_of_errors(*where, newest=newest, job=context.job)).one()
    return rows, rows[0].groups if rows else 0, extent.jobs, extent.floor or 0


def of_group(context: PageContext) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs of the group in an address or a form. Raises BadInput if it names none."""
    query, job = context.query, context.job
    if not (task := query.one("task")) or not (group := query.one("group")):
        raise BadInput("the form", "no group", "a task, and a group of its errors")
    last = job.errors[-1]
    return [
        # The index comes first; the floor excludes jobs that the page has not counted.
        job.status == status_literal(JobStatus.FAILED),
        job.id >= (query.id("floor") or 1),
        job.task == task,
        class_of(last) == sa.literal(query.one("error"), sa.Text),
        sign_of(line_of(last)) == sa.literal(group, sa.Text),
        *context.mine(),
    ]


def named(query: Query) -> Query:
    """The values that identify the group."""
    return query.only(*_NAMES, "floor")


#: By name.
ERROR_ACTIONS = {
    action.name: action
    for action in (
        action_on_jobs(
            "retry_group", "Retry all", "Retried {n}.", "retry", which=of_group, build=retry_jobs,
            question="Run {n} {unit} that failed like this again, now?", target=_NAMES, variants=WAITS, locked="skip",
        ),
        action_on_jobs(
            "delete_group", "Delete all", "Deleted {n}.", "delete", which=of_group, build=prune_jobs,
            question="Delete {n} {unit} that failed like this, permanently?", target=_NAMES, careful=True, limit=1_000,
        ),
    )
}  # fmt: skip

#: The jobs of a group that are shown.
_PAGE = 50
#: The size of the drawing of a group's hours.
_WIDTH, _HEIGHT = 96, 20
_COLUMNS = ("task", "group", "jobs", "first", "last", "error")


def read_errors(context: PageContext) -> dict[str, Any]:
    """The groups; or the newest jobs of a given group."""
    actions = [name for name, action in ERROR_ACTIONS.items() if context.access.may(action.needs)]
    shown: dict[str, Any] = {"now": context.now(), "actions": actions, "most": NEWEST_FAILED, "group": None}
    if context.query.one("group"):
        return {**shown, "group": named(context.query), "jobs": _jobs(context)}
    rows, number, of_all, floor = groups(context)
    found = [_shown(row) for row in rows]
    return {**shown, "rows": found, "floor": floor, "number": number, "of_all": of_all}


def _shown(row: Any) -> dict[str, Any]:
    counted: Counter[int] = Counter(row.hours or ())
    hours = [counted[ago] for ago in range(HOURS - 1, -1, -1)]
    return {
        **{name: getattr(row, name) for name in _COLUMNS},
        "name": row.error.rpartition(".")[2],
        "line": mask_passwords(row.line),
        "points": _points(hours),
        "lately": sum(hours),
    }


def _points(hours: Sequence[int]) -> str:
    """A line through the numbers, for an SVG of 96 by 20."""
    most = max([*hours, 1])
    step = _WIDTH / (len(hours) - 1)
    return " ".join(
        f"{round(place * step, 1):g},{round(1 + (_HEIGHT - 2) * (1 - number / most), 1):g}"
        for place, number in enumerate(hours)
    )


def _jobs(context: PageContext) -> list[dict[str, Any]]:
    job = context.job
    statement = (
        sa.select(
            job.id, job.task, job.queue, job.attempt, job.max_attempts, clamped(job.finished_at).label("finished_at"),
            job.errors[-1]["type"].astext.label("error"), job.errors[-1]["message"].astext.label("message"),
        )
        .where(*of_group(context))
        .order_by(job.id.desc())
        .limit(_PAGE + 1)
    )  # fmt: skip
    rows = context.connection.execute(statement).mappings().all()
    return [{**row, "message": mask_passwords(row["message"] or "")} for row in rows]


ERRORS = Page("errors", "Errors", "/errors", read_errors)
