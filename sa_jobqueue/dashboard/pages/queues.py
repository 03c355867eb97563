"""The queues: what waits and runs in each, how fast jobs come and go, and who serves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ...health.work import LATELY, QUEUES, QueueSeen, read_working
from ...health.work import read_workers as workers_of
from ...sql.readings.depths import arrivals
from ...sql.store import store_of
from ..actions.schedules import may_drain
from ..activity import points, read_activity
from ..request import Page, PageContext


def read_queues(context: PageContext) -> dict[str, Any]:
    """A row for each queue that has jobs, that a worker serves, that is paused, or whose jobs ended within the last minutes."""
    working = read_working(context.connection, store_of(context.job), only=context.queues)
    activity = read_activity(context, "1h")
    came = {
        row.queue: row.number * 60 / row.seconds
        for row in context.connection.execute(arrivals(within=LATELY, job=context.job))
    }
    return {
        "now": working.now,
        "minutes": int(LATELY.total_seconds() // 60),
        "queues": [_shown(one, came.get(one.name, 0.0), activity.ended(one.name)) for one in working.queues],
        "cut": len(working.queues) >= QUEUES,
        "most": QUEUES,
        "may_pause": context.access.may("pause"),
        "may_cancel": context.access.may("discard"),
    }


def _shown(queue: QueueSeen, came: float, ended: Sequence[float]) -> dict[str, Any]:
    return {
        "seen": queue,
        "in": came,
        "out": queue.lately.per_minute(),
        "p50": queue.lately.wait("p50"),
        "p95": queue.lately.wait("p95"),
        "points": points(ended),
        "most": max(ended, default=0.0),
    }


QUEUES_PAGE = Page("queues", "Queues", "/queues", read_queues, adds_up=True)

# ---- The worker processes: where they are, what they serve, how they are, and which have not been seen for long.

#: Workers that are shown.
_MOST = 500


def read_workers(context: PageContext) -> dict[str, Any]:
    """A row for each worker that has not left; the stale ones first."""
    workers = workers_of(context.connection, store_of(context.job), only=context.queues)
    return {
        "now": context.connection.scalar(sa.select(sa.func.now())),
        "workers": workers[:_MOST],
        "more": max(len(workers) - _MOST, 0),
        "live": sum(not one.stale for one in workers),
        "stale": sum(one.stale for one in workers),
        "slots": sum(one.slots for one in workers if not one.stale),
        "running": sum(one.running for one in workers),
        "versions": sorted({one.version for one in workers if not one.stale}),
        "may_drain": may_drain(context),
    }


WORKERS = Page("workers", "Workers", "/workers", read_workers, adds_up=True)
