"""The state of the queue at a glance: waiting, running and failed jobs, how jobs ended, and the doctor's findings."""

from __future__ import annotations

from typing import Any

from ...health.work import read_working
from ...sql.readings.depths import CAP, capped_sum
from ...sql.store import store_of
from ..activity import WINDOWS, bars, grouping_of, read_activity, window_of
from ..request import Page, PageContext
from .database import alarms_of, examined, spans_of
from .errors import marked_groups, marks_of
from .queues import shown_queue

#: The queues and errors that are shown, and the failed jobs that are grouped by error.
_QUEUES, _ERRORS, _NEWEST = 12, 6, 500


def read_overview(context: PageContext) -> dict[str, Any]:
    """Read the overview."""
    window = window_of(context)
    working = read_working(context.connection, store_of(context.job), only=context.queues)
    activity = read_activity(context, window, by=grouping_of(context, "queue", "task"), now=working.now)
    doctor = examined(context)
    queues = working.queues
    oldest = max((queue.oldest for queue in queues if queue.oldest is not None), default=None)
    stale = sum(worker.stale for worker in working.workers)
    paused = [queue.name for queue in queues if queue.paused is not None]
    ended = activity.ended("queue")
    marks = marks_of(context)
    alarms = alarms_of([finding for finding in doctor.findings if finding.level != "ok"], marks)
    found = marked_groups(context, working.now, marks, newest=_NEWEST, most=_ERRORS)
    errors = [row for row in found if not row["is_hidden"]]
    return {
        "now": working.now,
        "window": window,
        "windows": list(WINDOWS),
        "due": capped_sum(queue.due for queue in queues),
        "queued": capped_sum(queue.queued for queue in queues),
        "running": min(working.running, CAP),
        "failed": min(working.failed, CAP),
        "oldest": oldest,
        "oldest_queue": next((queue.name for queue in queues if oldest is not None and queue.oldest == oldest), ""),
        "workers": len(working.workers) - stale,
        "stale": stale,
        "activity": activity,
        "verdict": activity.flow(without=paused).verdict(time=window.name),
        "paused": paused,
        "histogram": bars(activity.all.waits),
        "queues": [shown_queue(queue, ended) for queue in queues[:_QUEUES]],
        "more_queues": max(len(queues) - _QUEUES, 0),
        "errors": errors[:_ERRORS],
        "newest": _NEWEST,
        "alarms": sorted(alarms, key=lambda alarm: alarm.acknowledged is not None),
        "spans": spans_of(context),
        "examined_at": doctor.at,
    }


OVERVIEW = Page("overview", "Overview", "/", read_overview, adds_up=True)
