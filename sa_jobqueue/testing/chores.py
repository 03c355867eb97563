"""What workers do beside running jobs, done once: schedules, leases that have run out, jobs whose time is over."""

from __future__ import annotations

import random
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ..errors import OptionError
from ..failures import entry
from ..lifecycle import Rules, decide
from ..models import JobMixin
from ..outcomes import Rescued
from ..settings import WorkerSettings
from ..store import Expired, Store, Ticked, store_of
from ..tasks import Registry
from .sides import connection_of

__all__ = ["do_chores"]

_PAGE = 1_000


def do_chores(session: Session, *, registry: Registry, job: type[JobMixin]) -> None:
    """Enqueue the jobs of due schedules, rescue jobs whose lease has run out, and end those whose expiry or deadline is over."""
    connection, store = connection_of(session, job), store_of(job)
    _rescue(connection, store, registry)
    store.forget_expiry(connection, limit=_PAGE)
    store.end_expired(connection, limit=_PAGE)
    store.end_overdue(connection, limit=_PAGE)
    ticked = Ticked()
    store.enqueue_due(connection, ticked, limit=_PAGE, random=random.random)
    for name, reason in ticked.bad:
        raise OptionError(f"schedule {name!r} cannot be used: {reason}")


def _rescue(connection: sa.Connection, store: Store, registry: Registry) -> None:
    if found := store.expired(connection, limit=_PAGE):
        rescued = Rescued(entry("WorkerLost", "the lease of its worker had run out"))
        store.apply(
            connection, [decide(one.claim, rescued, _rules(one, registry), random=random.random()) for one in found]
        )


def _rules(found: Expired, registry: Registry) -> Rules:
    task = registry.get(found.task)
    return replace(task.rules if task is not None else Rules(), max_rescues=WorkerSettings().max_rescues)
