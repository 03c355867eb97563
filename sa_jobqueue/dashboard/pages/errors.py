"""Failed jobs, grouped by task, error and first line, the most frequent first; and the jobs of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...health.one_job import clamped, read_job
from ...models import JobMixin, status_literal
from ...rules.lifecycle import JobStatus
from ...sql.chosen import reading_of
from ...sql.readings.depths import (
    HOURS,
    MOST_GROUPS,
    MUTES,
    NEWEST_FAILED,
    class_of,
    deployed_at,
    extent_of_errors,
    group_errors,
    line_of,
    mark_state,
    newest_marks,
    sign_of,
)
from ...statements import prune_jobs, retry_jobs
from ...util.urls import mask_passwords
from ..actions import Done, PageAction
from ..actions.jobs import WAITS, action_on_jobs
from ..filters import among_newest
from ..query import Query
from ..refusals import BadInput
from ..render import errors_of, value_of
from ..request import ONE, Missing, Page, PageContext

#: The names of the values that identify a group in an address or a form.
_NAMES = ("task", "error", "group")


def _where(context: PageContext) -> list[sa.ColumnElement[bool]]:
    """The viewer's jobs among the newest failed jobs of all viewers, so that the search stays short if most belong to others."""
    return [among_newest(context, JobStatus.FAILED), *mine] if (mine := context.mine()) else []


def marked_groups(
    context: PageContext, now: datetime, marks: Sequence[Any], *, newest: int = NEWEST_FAILED, most: int = MOST_GROUPS, after: datetime | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The `most` largest groups among the `newest` jobs with their marks, and as many more as marks may hide; `after`: only those that
    began after this time.
    """
    by_group = _by_group(marks)
    statement = group_errors(*_where(context), newest=newest, most=most + len(by_group), after=after, job=context.job)
    return [{**_shown(row), **_marked(row, by_group, now)} for row in context.connection.execute(statement)]


def _extent(context: PageContext, newest: int = NEWEST_FAILED) -> Any:
    """The number of jobs whose groups are shown, and their lowest id."""
    return context.connection.execute(extent_of_errors(*_where(context), newest=newest, job=context.job)).one()


def _deployed(context: PageContext, extent: Any) -> datetime | None:
    """When the newest version of the workers was deployed. None: there is no worker, or jobs that failed since then are not counted."""
    at: datetime | None = context.connection.scalar(deployed_at(job=context.job))
    if at is None or extent.jobs < NEWEST_FAILED:
        return at
    job = context.job
    is_old = sa.select(job.finished_at < sa.bindparam("deployed", at)).where(job.id == extent.floor)
    return at if context.connection.scalar(is_old) else None


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


def group_sign(job: type[JobMixin]) -> sa.ColumnElement[str | None]:
    """The short name of the line of a failed job, as in an address; NULL for other jobs."""
    return sa.case((job.status == status_literal(JobStatus.FAILED), sign_of(line_of(job.errors[-1]))))


def group_of(context: PageContext, id: int) -> dict[str, Any] | None:
    """The group of a failed job, and the number of jobs in it among the newest failed jobs. None: the job has not failed."""
    job = context.job
    found: Any = context.connection.execute(
        sa.select(job.task, class_of(job.errors[-1]).label("error"), group_sign(job).label("group")).where(job.id == id)
    ).one_or_none()
    if found is None or found.group is None:
        return None
    extent = _extent(context, _COUNTED)
    query = Query([(name, getattr(found, name)) for name in _NAMES])
    alike = of_group(replace(context, query=query.but(floor=extent.floor)))
    number = context.count(sa.select(ONE).select_from(job).where(*alike))
    return {"query": query, "jobs": number, "of": extent.jobs if extent.jobs >= _COUNTED else None}


# ---- Groups that are resolved or muted: an entry of the audit marks them.


def _mark(context: PageContext) -> Done:
    """Check the form; the entry of the audit is the mark. Raises Missing for a viewer of some jobs, and BadInput.

    Viewers of some jobs neither make marks nor have groups hidden by them, because a mark concerns all jobs.
    """
    if not context.access.sees_all:
        raise Missing("There is no group of errors that you may mark: you see only some of its jobs.")
    of_group(context)
    return Done(1)


def _mute(context: PageContext) -> Done:
    if (given := context.query.one("for")) not in MUTES:
        raise BadInput("for", given, f"one of {', '.join(MUTES)}")
    return _mark(context)


MARK_ACTIONS = (
    PageAction("resolve_errors", "Resolve", "Resolved, until a job fails like this again.", "retry", _mark, target=_NAMES),
    PageAction("mute_errors", "Mute", "Muted for that time.", "retry", _mute, target=(*_NAMES, "for")),
    PageAction("show_errors", "Show again", "It is on the list again.", "retry", _mark, target=_NAMES),
)  # fmt: skip


def marks_of(context: PageContext) -> Sequence[Any]:
    """The newest marks of groups of errors and of the doctor's findings, the last first; none for a viewer of some jobs."""
    statement = newest_marks(job=context.job)
    return context.connection.execute(statement).mappings().all() if context.access.sees_all else ()


def _by_group(marks: Sequence[Any]) -> dict[tuple[str, ...], Any]:
    """The last mark of each group, by its task, error and short name."""
    return {tuple(mark[name] for name in _NAMES): mark for mark in reversed(marks)}


def _marked(row: Any, marks: Mapping[tuple[str, ...], Any], now: datetime) -> dict[str, Any]:
    """The mark of a group, its state, and whether it is hidden."""
    mark = marks.get((row.task, row.error, row.group))
    state, until = mark_state(mark, row.last, now)
    return {"mark": state, "until": until, "marked": mark, "is_hidden": state in ("resolved", "muted")}


ERROR_ACTIONS = (
    action_on_jobs(
        "retry_group", "Retry all", "Retried {n}.", "retry", which=of_group, build=retry_jobs,
        question="Run {n} {unit} that failed like this again, now?", target=_NAMES, variants=WAITS, locked="skip",
    ),
    action_on_jobs(
        "delete_group", "Delete all", "Deleted {n}.", "delete", which=of_group, build=prune_jobs,
        question="Delete {n} {unit} that failed like this, permanently?", target=_NAMES, careful=True, typed="action", limit=1_000,
    ),
)  # fmt: skip

#: The jobs of a group that are shown, and the newest failed jobs among which the page of a job counts those of its group.
_PAGE, _COUNTED = 50, 1_000
#: The size of the drawing of a group's hours.
_WIDTH, _HEIGHT = 96, 20
_COLUMNS = ("task", "group", "jobs", "first", "last", "error", "groups")


def read_errors(context: PageContext) -> dict[str, Any]:
    """The groups; or a given group."""
    actions = [action.name for action in ERROR_ACTIONS if context.access.may(action.needs)]
    shown: dict[str, Any] = {
        "now": context.now(), "actions": actions, "most": NEWEST_FAILED, "group": None, "mutes": list(MUTES),
    }  # fmt: skip
    shown["may_mark"] = context.access.may("retry") and context.access.sees_all
    if context.query.one("group"):
        return {**shown, **_group(context, shown["now"])}
    extent = _extent(context)
    deployed, show = _deployed(context, extent), context.query.one("show")
    after = deployed if show == "new" else None
    found = marked_groups(context, shown["now"], marks_of(context), after=after) if show != "new" or deployed else []
    kept = [row for row in found if show == "all" or not row["is_hidden"]]
    return {
        **shown,
        "left_out": sum(row["is_hidden"] for row in found),
        "more": len(kept) > MOST_GROUPS or (bool(found) and found[0]["groups"] > len(found)),
        "show": show,
        "deployed": deployed,
        "rows": [{**row, "is_new": deployed is not None and row["first"] > deployed} for row in kept[:MOST_GROUPS]],
        "floor": extent.floor or 0,
        "number": found[0]["groups"] if found else 0,
        "of_all": extent.jobs,
    }


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


def _group(context: PageContext, now: datetime) -> dict[str, Any]:
    """A group: its numbers, its newest jobs, the error and the arguments of the newest job, and the state of the job that was retried."""
    if context.query.id("floor") is None:
        context = replace(context, query=context.query.but(floor=_extent(context).floor or 1))
    job, tried = context.job, context.query.id("tried")
    row = context.connection.execute(group_errors(*of_group(context), job=job)).one_or_none()
    found = None if row is None else {**_shown(row), **_marked(row, _by_group(marks_of(context)), now)}
    jobs = _jobs(context)
    newest = read_job(context.connection, jobs[0]["id"], where=of_group(context), job=job) if jobs else None
    state = sa.select(job.id, reading_of(job).label("reading")).where(job.id == tried, *context.mine())
    return {
        "group": named(context.query),
        "row": found,
        "rows": [found] if found else [],
        "jobs": jobs,
        "newest": newest and newest.job.id,
        "failure": next(iter(errors_of(newest)[0]), None) if newest else None,
        "args": value_of("args", newest, context.options.format_args) if newest else None,
        "tried": None if tried is None else context.connection.execute(state).one_or_none(),
    }


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
