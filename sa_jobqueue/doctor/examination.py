"""An examination: its connection, its thresholds, and the values that its checks share, each read once."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from ..health.read import Readings, reading
from ..health.work import read_limit_uses, read_paused_keys, read_ready_keys
from ..sql.readings.depths import list_workers, queued_tasks
from ..sql.readings.stats import By, sum_stats
from ..sql.store import Store, default_store
from ..tasks.registry import Registry
from ..util.schema import quote
from .finding import Thresholds

#: A name that needs no quotes in SQL.
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_BY_TASK: tuple[By, ...] = ("task",)
_COUNTED = ("completed", "failed", "lost", "runs")


class Examination(Readings):
    """The values that the checks of an examination share. Each is read when a check first uses it.

    `engine`: for the check of LISTEN and NOTIFY, which needs two more connections; None omits it. `tasks`: the names and aliases of an
    application's tasks; None: there is no application to compare with. `registry`: the tasks of the application before its deployment.
    """

    def __init__(
        self,
        connection: sa.Connection,
        *,
        engine: sa.Engine | None = None,
        thresholds: Thresholds | None = None,
        tasks: Collection[str] | None = None,
        registry: Registry | None = None,
        store: Store = default_store,
    ) -> None:
        super().__init__(connection, store)
        self.engine = engine
        self.thresholds = thresholds or Thresholds()
        self.tasks = None if tasks is None else frozenset(tasks)
        self.registry = registry
        self._stats: dict[timedelta, Sequence[Any]] = {}

    @property
    def schema(self) -> str:
        """The schema of the job tables."""
        return self.store.schema_on(self.connection)

    def table(self, name: str) -> str:
        """The name of a table or an index, with its schema, as an operator would type it."""
        return ".".join(part if _PLAIN.fullmatch(part) else quote(part) for part in (self.schema, name))

    @cached_property
    def queued_tasks(self) -> Sequence[tuple[str, str]]:
        """Queue and task of a sample of queued jobs."""
        sample = queued_tasks(sample=self.thresholds.unknown_sample, job=self.store.job)
        return [(row.queue, row.task) for row in self.connection.execute(sample)]

    limit_uses = reading(read_limit_uses)
    """The queues and tasks that have limits or are paused."""
    paused_keys = reading(read_paused_keys)
    """The keys that are paused."""
    ready_keys = reading(read_ready_keys)
    """The number of keys that take turns, by queue."""

    @cached_property
    def workers(self) -> Sequence[Any]:
        """The rows of `list_workers`."""
        return self.connection.execute(list_workers(job=self.store.job)).all()

    @property
    def live_workers(self) -> Sequence[Any]:
        """The workers that are not stale."""
        return [worker for worker in self.workers if not worker.stale]

    @cached_property
    def abilities(self) -> Sequence[Any]:
        """Queues, tasks, lease, schema_version, pressure and skipped jobs of the live workers."""
        worker = self.store.tables.worker
        columns = (worker.queues, worker.tasks, worker.lease, worker.schema_version, worker.pressure, worker.skipped)
        live = [row.id for row in self.live_workers]
        return self.connection.execute(sa.select(*columns).where(worker.id.in_(live))).all() if live else []

    @cached_property
    def task_settings(self) -> Mapping[str, tuple[float | None, float | None]]:
        """The timeout and the lease of each task that a live worker knows; the shortest if workers differ."""
        settings: dict[str, tuple[float | None, float | None]] = {}
        for worker in self.abilities:
            for name, about in worker.tasks.items():
                given = about.get("timeout") if isinstance(about, dict) else None
                timeout = float(given) if isinstance(given, (int, float)) else None
                other = settings.get(name, (None, None))
                settings[name] = (_least(timeout, other[0]), _least(worker.lease, other[1]))
        return settings

    def stats(self, since: timedelta) -> Sequence[Any]:
        """The completed, failed and lost jobs of each task since then, and how long they ran."""
        if since not in self._stats:
            summed = sum_stats(since=since, by=_BY_TASK, values=_COUNTED, stat=self.store.tables.stat)
            self._stats[since] = self.connection.execute(summed).all()
        return self._stats[since]


def _least(first: float | None, second: float | None) -> float | None:
    return min((value for value in (first, second) if value is not None), default=None)
