"""The worker processes: where they are, what they serve, how they are, and which have not been seen for long."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ...health import read_workers as workers_of
from ...store import store_of
from ..look import Look
from ..page import Page
from ..worker_deeds import may_drain

__all__ = ["WORKERS"]

#: Workers that are shown.
_MOST = 500


def read_workers(look: Look) -> dict[str, Any]:
    """A row for each worker that has not left; the stale ones first."""
    workers = workers_of(look.connection, store_of(look.job), only=look.queues)
    return {
        "now": look.connection.scalar(sa.select(sa.func.now())),
        "workers": workers[:_MOST],
        "more": max(len(workers) - _MOST, 0),
        "live": sum(not one.stale for one in workers),
        "stale": sum(one.stale for one in workers),
        "slots": sum(one.slots for one in workers if not one.stale),
        "running": sum(one.running for one in workers),
        "versions": sorted({one.version for one in workers if not one.stale}),
        "may_drain": may_drain(look),
    }


WORKERS = Page("workers", "/workers", read_workers, adds_up=True)
