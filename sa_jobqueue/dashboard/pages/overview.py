"""Whether the queue is well, at a glance: what waits, what runs, what failed, what jobs came to, and what the doctor found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...health.read import QUANTILES
from ...health.work import QueueSeen, read_working
from ...sql.readings.depths import CAP, capped_sum
from ...sql.store import store_of
from ...util.urls import mask_passwords
from ..activity import WINDOWS, Activity, bars, points, read_activity, window_of
from ..request import Page, PageContext
from .database import examined
from .errors import groups

#: Queues and errors that are shown; failed jobs that are looked at.
_QUEUES, _ERRORS, _NEWEST = 12, 6, 500
#: The page on which there is more of what a check finds; of the others, that of the database.
_SEEN_AT = {
    "workers": "/workers", "leases": "/workers", "queues": "/queues", "waiting": "/queues", "failures": "/errors", "limits": "/limits",
    "schedules": "/schedules", "workflows": "/workflows",
}  # fmt: skip


def read_overview(context: PageContext) -> dict[str, Any]:
    """All of it."""
    window = window_of(context)
    working = read_working(context.connection, store_of(context.job), only=context.queues)
    activity = read_activity(context, window)
    doctor = examined(context)
    queues = working.queues
    oldest = max((one.oldest for one in queues if one.oldest is not None), default=None)
    stale = sum(one.stale for one in working.workers)
    return {
        "now": working.now,
        "window": window,
        "windows": list(WINDOWS),
        "due": capped_sum(one.due for one in queues),
        "queued": capped_sum(one.queued for one in queues),
        "running": min(working.running, CAP),
        "failed": min(working.failed, CAP),
        "oldest": oldest,
        "oldest_queue": next((one.name for one in queues if one.oldest == oldest), "") if oldest is not None else "",
        "workers": len(working.workers) - stale,
        "stale": stale,
        "throughput": activity.throughput(),
        "waits": activity.waits(),
        "activity": activity,
        "waited": {name: activity.all.wait(name) for name in QUANTILES},
        "histogram": bars(activity.all.waits),
        "queues": [_shown(one, activity) for one in queues[:_QUEUES]],
        "more_queues": max(len(queues) - _QUEUES, 0),
        "errors": _errors(context),
        "newest": _NEWEST,
        "alarms": doctor.alarms,
        "seen_at": _SEEN_AT,
        "looked": doctor.at,
    }


def _shown(queue: QueueSeen, activity: Activity) -> dict[str, Any]:
    return {
        "seen": queue,
        "rate": queue.lately.per_minute(),
        "p95": queue.lately.wait("p95"),
        "points": points(activity.ended(queue.name)),
        "most": max(activity.ended(queue.name), default=0.0),
    }


def _errors(context: PageContext) -> list[Mapping[str, Any]]:
    """The most frequent errors among the newest failed jobs, with when each came last."""
    rows, *_ = groups(context, newest=_NEWEST, most=_ERRORS)
    return [
        {"task": row.task, "type": row.error, "message": mask_passwords(row.line), "count": row.jobs, "last": row.last}
        for row in rows
    ]


OVERVIEW = Page("overview", "Overview", "/", read_overview, adds_up=True)
