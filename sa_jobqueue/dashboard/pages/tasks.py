"""The tasks, with their rates and times; and the page of a task or a queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from ...health.one_job import clamped
from ...health.read import ENDS, Figures
from ...health.work import LATELY, read_working
from ...models import status_literal
from ...rules.lifecycle import JobStatus
from ...rules.tally import BUCKETS
from ...sql.readings.depths import arrivals
from ...sql.readings.stats import By
from ...sql.store import store_of
from ...sql.workers import serves
from ...statements import list_schedules
from ..actions.schedules import reached_schedules
from ..activity import WINDOWS, bars, grouping_of, points, read_activity, read_tasks, window_of
from ..filters import chosen, highest_id, reach
from ..query import Query
from ..refusals import BadInput
from ..request import Missing, Page, PageContext

#: The tasks, schedules and slowest jobs that are shown, and the completed jobs among which the slowest are searched.
_TASKS, _SCHEDULES, _SLOWEST, _AMONG = 200, 20, 5, 1_000
_DAY = "24h"
_NOTHING = Figures(dict.fromkeys((*ENDS, "retried"), 0), 1.0, 0.0, 0.0, [0] * BUCKETS, [0] * BUCKETS)


def read_all(context: PageContext) -> dict[str, Any]:
    """A row for each task with jobs that ended within the window or were enqueued lately, or that a live worker knows."""
    window = window_of(context, _DAY)
    came = {} if context.queues is not None and not context.queues else _arrived(context, "task")
    found: dict[str, tuple[Figures, Sequence[float]]] = defaultdict(lambda: (_NOTHING, ()))
    found |= {name: (figures, ended) for name, figures, ended in read_tasks(context, window)}
    names = sorted({*found, *came, *_known(context)}, key=lambda name: (-found[name][0].ended, name))
    return {
        "now": context.now(),
        "window": window,
        "windows": list(WINDOWS),
        "minutes": int(LATELY.total_seconds() // 60),
        "tasks": [_shown(name, *found[name], came.get(name, 0.0)) for name in names[:_TASKS]],
        "more": max(len(names) - _TASKS, 0),
    }


def _shown(name: str, figures: Figures, ended: Sequence[float], came: float) -> dict[str, Any]:
    return {"name": name, "in": came, "figures": figures, "points": points(ended), "most": max(ended, default=0.0)}


def _arrived(context: PageContext, by: By) -> dict[str, float]:
    """Jobs that were enqueued per minute, by queue or task."""
    rows = context.connection.execute(
        arrivals(within=LATELY, by=by, queues=sorted(context.queues or ()), job=context.job)
    )
    return {row[0]: row.number * 60 / row.seconds for row in rows if row.number}


def _known(context: PageContext) -> list[str]:
    """The tasks of all workers; nothing for a viewer of some queues, because a worker's tasks belong to no queue."""
    if context.queues is not None:
        return []
    names = sa.select(sa.func.jsonb_object_keys(context.tables.worker.tasks).label("name")).subquery("names")
    return list(context.connection.scalars(sa.select(names.c.name).distinct().limit(_TASKS)))


TASKS = Page("tasks", "Tasks", "/tasks", read_all, adds_up=True)

# ---- One of them.


def _read(context: PageContext, by: By) -> tuple[str, dict[str, Any]]:
    """The name in the path, and what the pages of a task and of a queue have in common. Raises BadInput."""
    name, window, tables = context.path["name"], window_of(context, _DAY), context.tables
    if "\0" in name:
        raise BadInput("the address", "NUL", f"the name of a {by}, in which there is no NUL character")
    shown_by = grouping_of(context, "queue" if by == "task" else "task")
    activity = read_activity(context, window, of=(by, name), by=shown_by)
    limit = tables.limit
    paused = sa.select(limit.pause_reason).where(limit.owner == by, limit.name == name, limit.paused_at.is_not(None))
    pause = context.connection.execute(paused).first()
    schedules = list_schedules(job=context.job).where(getattr(tables.schedule, by) == name, *reached_schedules(context))
    return name, {
        "now": context.now(),
        "kind": by,
        "name": name,
        "window": window,
        "windows": list(WINDOWS),
        "in": _arrived(context, by).get(name, 0.0),
        "minutes": int(LATELY.total_seconds() // 60),
        "figures": activity.all,
        "activity": activity,
        "verdict": activity.flow().verdict(paused=pause is not None, time=window.name) if by == "queue" else None,
        "charts": {"How long jobs had been due": activity.waits(), "How long handlers took": activity.runs()},
        "histogram": bars(activity.all.waits),
        "schedules": context.connection.execute(schedules.limit(_SCHEDULES)).mappings().all(),
        "slowest": _slowest(replace(context, query=Query([(by, name)]))),
        "among": _AMONG,
        "is_paused": pause is not None,
        "pause_reason": "" if pause is None else pause.pause_reason or "",
        "may_enqueue": context.access.may("enqueue") and by == "task",
        "may_pause": context.access.may("pause") and (by == "queue" or context.queues is None),
    }  # fmt: skip


def _slowest(context: PageContext) -> Sequence[sa.RowMapping]:
    """The jobs that ran longest, among the newest completed jobs of the filter."""
    job = context.job
    _, within = reach(context, highest_id(context) + 1)
    ended = clamped(job.finished_at)
    took = sa.func.extract("epoch", ended - clamped(job.claimed_at)).label("took")
    some = (
        sa.select(job.id, job.task, ended.label("finished_at"), took)
        .where(*chosen(context), *within, job.status == status_literal(JobStatus.COMPLETED))
        .order_by(job.id.desc())
        .limit(_AMONG)
        .subquery("some")
    )
    statement = sa.select(some).order_by(some.c.took.desc().nulls_last(), some.c.id).limit(_SLOWEST)
    return context.connection.execute(statement).mappings().all()


def read_task(context: PageContext) -> dict[str, Any]:
    """The page of a task."""
    name, values = _read(context, "task")
    worker = context.tables.worker
    knows = sa.select(worker.host, worker.pid, worker.version).where(worker.tasks.has_key(name)).limit(_TASKS)
    rows = [] if context.queues is not None else context.connection.execute(knows).all()
    return {**values, "workers": [f"{row.host}:{row.pid}" for row in rows]}


def read_queue(context: PageContext) -> dict[str, Any]:
    """The page of a queue."""
    name = context.path["name"]
    if context.queues is not None and name not in context.queues:
        raise Missing(f"There is no queue {name} that you may see.")
    name, values = _read(context, "queue")
    working = read_working(context.connection, store_of(context.job), only={name})
    seen = next((queue for queue in working.queues if queue.name == name), None)
    return {**values, "seen": seen, "workers": [worker for worker in working.workers if serves(worker.queues, name)]}


TASK = Page("task", "Task", "/tasks/{name:path}", read_task, in_menu=False, adds_up=True)
QUEUE = Page("queue", "Queue", "/queues/{name:path}", read_queue, in_menu=False, adds_up=True)
