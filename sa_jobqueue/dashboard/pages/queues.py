"""The queues, with their waiting and running jobs, rates and workers; and the worker processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...health.work import LATELY, QUEUES, QueueSeen, read_working
from ...health.work import read_workers as workers_of
from ...sql.readings.depths import arrivals
from ...sql.store import store_of
from ...sql.workers import slots_wanted
from ..actions.schedules import may_ask
from ..activity import WINDOWS, points, read_activity
from ..request import Page, PageContext


def read_queues(context: PageContext) -> dict[str, Any]:
    """A row for each queue that has jobs, that a worker serves, that is paused, or whose jobs ended within the last minutes."""
    working = read_working(context.connection, store_of(context.job), only=context.queues)
    ended = read_activity(context, WINDOWS["1h"], now=working.now).ended("queue")
    rows = context.connection.execute(arrivals(within=LATELY, job=context.job))
    arrived = {row.queue: row.number * 60 / row.seconds for row in rows}
    return {
        "now": working.now,
        "minutes": int(LATELY.total_seconds() // 60),
        "queues": [
            shown_queue(queue, ended) | {"in": arrived.get(queue.name, 0.0), "p50": queue.lately.wait("p50")}
            for queue in working.queues
        ],
        "cut": len(working.queues) >= QUEUES,
        "most": QUEUES,
    }


def shown_queue(queue: QueueSeen, ended: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """A row of the table. `ended`: jobs that ended per minute in each step, by queue."""
    rates = ended.get(queue.name) or [0.0, 0.0]
    return {
        "seen": queue,
        "out": queue.lately.per_minute(),
        "p95": queue.lately.wait("p95"),
        "points": points(rates),
        "most": max(rates),
    }


QUEUES_PAGE = Page("queues", "Queues", "/queues", read_queues, adds_up=True)

# ---- The worker processes.

#: The most workers that are shown.
_MOST = 500


def read_workers(context: PageContext) -> dict[str, Any]:
    """A row for each worker that has not left; stale workers first."""
    workers = workers_of(context.connection, store_of(context.job), only=context.queues)
    live = [worker for worker in workers if not worker.stale]
    return {
        "now": context.now(),
        "workers": workers[:_MOST],
        "more": max(len(workers) - _MOST, 0),
        "live": len(live),
        "stale": len(workers) - len(live),
        "slots": sum(worker.slots for worker in live),
        "running": sum(worker.running for worker in workers),
        "versions": sorted({worker.version for worker in live}),
        "may_drain": may_ask(context, "drain_worker"),
        "may_set": may_ask(context, "set_slots"),
        "slots_wanted": slots_wanted,
    }


WORKERS = Page("workers", "Workers", "/workers", read_workers, adds_up=True)
