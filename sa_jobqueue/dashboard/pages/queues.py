"""The queues: what waits and runs in each, how fast jobs come and go, and who serves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...health import QueueSeen, read_working
from ...health.work import LATELY, QUEUES
from ...statements.backlog import arrivals
from ...store import store_of
from ..activity import read_activity
from ..look import Look
from ..page import Page
from ..sparks import points

__all__ = ["QUEUES_PAGE"]


def read_queues(look: Look) -> dict[str, Any]:
    """A row for each queue that has jobs, that a worker serves, that is paused, or whose jobs ended within the last minutes."""
    working = read_working(look.connection, store_of(look.job), only=look.queues)
    activity = read_activity(look, "1h")
    came = {
        row.queue: row.number * 60 / row.seconds
        for row in look.connection.execute(arrivals(within=LATELY, job=look.job))
    }
    return {
        "now": working.now,
        "minutes": int(LATELY.total_seconds() // 60),
        "queues": [_shown(one, came.get(one.name, 0.0), activity.ended(one.name)) for one in working.queues],
        "cut": len(working.queues) >= QUEUES,
        "most": QUEUES,
        "may_pause": look.access.may("pause"),
        "may_cancel": look.access.may("discard"),
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


QUEUES_PAGE = Page("queues", "/queues", read_queues, adds_up=True)
