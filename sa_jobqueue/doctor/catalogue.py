"""All checks, in the order in which they are made. A capability that has something to check adds its entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .checks.archive import check_archive
from .checks.connection import check_clock, check_database, check_schema_version, check_wake_ups
from .checks.jobs import check_cleanup, check_leases, check_unique, check_waiting
from .checks.limits import check_limits
from .checks.plans import check_plans
from .checks.pressure import (
    check_connections,
    check_locks,
    check_notify_queue,
    check_replication,
    check_slots,
    check_snapshot,
)
from .checks.schedules import check_schedules
from .checks.storage import check_bloat, check_dead_rows, check_frozen_age, check_indexes, check_sequences, check_vacuum
from .checks.tasks import check_failures, check_tasks, check_timeouts
from .checks.workers import check_queues, check_workers
from .checks.workflows import check_workflows
from .examination import Examination
from .finding import Finding

__all__ = ["CHECKS", "Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """One question, and how it is answered."""

    name: str
    about: str
    """What is looked at, in a few words."""
    look: Callable[[Examination], Finding]
    decides: bool = False
    """Where it finds a problem, the checks behind it are not made."""


CHECKS: tuple[Check, ...] = (
    Check("database", "the server's version, and whether it takes writes", check_database),
    Check("clock", "the server's clock beside this machine's", check_clock),
    Check("schema", "the version of the job tables", check_schema_version, decides=True),
    Check("wake-ups", "whether a NOTIFY is heard", check_wake_ups),
    Check("workers", "workers that live and listen, and their releases", check_workers),
    Check("queues", "queues with due jobs that no worker serves", check_queues),
    Check("tasks", "jobs and schedules of tasks that no worker knows", check_tasks),
    Check("waiting", "how long the oldest due job has waited", check_waiting),
    Check("leases", "running jobs whose worker is gone", check_leases),
    Check("timeouts", "timeouts and leases beside how long the runs take", check_timeouts),
    Check("failures", "jobs that failed for good, and outcomes that came too late", check_failures),
    Check("limits", "pauses that keep jobs waiting, and permits that do not come free", check_limits),
    Check("unique", "unique keys that no job needs any more", check_unique),
    Check("schedules", "schedules that are behind, fail or were paused", check_schedules),
    Check(
        "workflows",
        "jobs that wait for each other, or for what will not come; workflows that do not move on",
        check_workflows,
    ),
    Check("cleanup", "finished jobs that should be deleted by now", check_cleanup),
    Check("archive", "whether the archive has this month and the next one, and its size", check_archive),
    Check("plans", "how the claim and the completion are executed", check_plans),
    Check("indexes", "indexes that are missing or not valid", check_indexes),
    Check("sequences", "whether the next id of each table is new", check_sequences),
    Check("snapshot", "the oldest snapshot, and who holds it", check_snapshot),
    Check("dead-rows", "rows that vacuum has not removed yet", check_dead_rows),
    Check("vacuum", "whether autovacuum is on, and comes", check_vacuum),
    Check("bloat", "space of tables and indexes that holds no live row", check_bloat),
    Check("locks", "sessions that wait for a lock on the job tables", check_locks),
    Check("connections", "how many of the server's connections are used", check_connections),
    Check("notify-queue", "how full the queue of notifications is", check_notify_queue),
    Check("frozen-age", "how far the server is from running out of transaction ids", check_frozen_age),
    Check("replication", "how far standbys are behind", check_replication),
    Check("slots", "replication slots, and the WAL that they keep", check_slots),
)
