"""Making the checks in turn, in a read-only transaction with short timeouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ..sql.store import Store, default_store
from ..tasks.registry import Registry
from ..util.log import one_line
from ..util.urls import mask_passwords
from ..worker.connections.service import setting
from .checks.connection import check_clock, check_database, check_schema_version, check_wake_ups
from .checks.deploy import check_new_steps, check_new_tasks, check_new_triggers, check_new_versions
from .checks.jobs import (
    check_cleanup,
    check_leases,
    check_queues,
    check_signals,
    check_unique,
    check_waiting,
    check_workers,
)
from .checks.limits import check_limits
from .checks.pressure import (
    check_connections,
    check_locks,
    check_notify_queue,
    check_replication,
    check_slots,
    check_snapshot,
)
from .checks.storage import (
    check_archive,
    check_bloat,
    check_dead_rows,
    check_frozen_age,
    check_indexes,
    check_plans,
    check_sequences,
    check_vacuum,
)
from .checks.tasks import check_failures, check_schedules, check_tasks, check_timeouts
from .checks.workflows import check_workflows
from .examination import Examination
from .finding import Finding, Level, Thresholds, worst


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its function."""

    name: str
    about: str
    """The subject of the check, in a few words."""
    look: Callable[[Examination], Finding]
    decides: bool = False
    """Whether a problem ends the examination: the following checks are not made."""
    gates: bool = False
    """Whether it is a problem if the check cannot be made."""


CHECKS: tuple[Check, ...] = (
    Check("database", "the server's version, and whether it takes writes", check_database),
    Check("clock", "the server's clock compared with this machine's", check_clock),
    Check("schema", "the version of the job tables", check_schema_version, decides=True),
    Check("wake-ups", "whether a NOTIFY is heard", check_wake_ups),
    Check("workers", "workers that live and listen, and their releases", check_workers),
    Check("queues", "queues with due jobs that no worker serves", check_queues),
    Check("tasks", "jobs and schedules of tasks that no worker knows", check_tasks),
    Check("waiting", "how long the oldest due job has waited", check_waiting),
    Check("leases", "running jobs whose worker is gone", check_leases),
    Check("timeouts", "timeouts and leases compared with the length of runs", check_timeouts),
    Check("failures", "jobs that failed for good, and outcomes that came too late", check_failures),
    Check("limits", "pauses that keep jobs waiting, and permits that do not come free", check_limits),
    Check("unique", "unique keys that no job needs any more", check_unique),
    Check("schedules", "schedules that are behind, fail or were paused", check_schedules),
    Check(
        "workflows",
        "jobs that wait for each other, or for what will not come; workflows that do not move on",
        check_workflows,
    ),
    Check("signals", "questions without an answer, and long waits for signals", check_signals),
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

#: The checks before the deployment of an application: see `examine`.
BEFORE_DEPLOY: tuple[Check, ...] = (
    Check("schema", "the version of the job tables", check_schema_version, decides=True),
    Check("new-tasks", "tasks that the new code does not have", check_new_tasks, gates=True),
    Check("new-versions", "arguments that the new code cannot read", check_new_versions, gates=True),
    Check("new-steps", "recorded steps that the new code does not mention", check_new_steps, gates=True),
    Check("new-triggers", "triggers of `on_change` that the new code needs, or no longer has", check_new_triggers),
)

#: A check that takes longer is given up, so that it does not burden a busy server.
_PATIENCE = timedelta(seconds=5)
_LOCK_PATIENCE = timedelta(milliseconds=250)


def examine(
    engine: sa.Engine,
    *,
    thresholds: Thresholds | None = None,
    checks: Sequence[Check] = CHECKS,
    probe: bool = True,
    tasks: Collection[str] | None = None,
    registry: Registry | None = None,
    patience: timedelta = _PATIENCE,
    store: Store = default_store,
) -> list[Finding]:
    """Make the checks on a connection of this engine, and return their findings.

    `tasks`: the names of an application's tasks, to find queued jobs of unknown tasks. `probe`: also try LISTEN and NOTIFY, which
    takes two more connections of psycopg 3, and up to 5 seconds. `registry`: the tasks with which the checks `BEFORE_DEPLOY` compare.
    `patience`: after which a statement is given up.

    Raises DBAPIError if the database does not answer, JobQueueError if the role may not see the schema or the probe is impossible.
    """
    with reading(engine, statement=patience) as connection:
        examination = Examination(
            connection,
            engine=engine if probe else None,
            thresholds=thresholds,
            tasks=tasks,
            registry=registry,
            store=store,
        )
        return list(look_at(examination, checks=checks, patience=patience))


def look_at(
    examination: Examination, *, checks: Sequence[Check] = CHECKS, patience: timedelta = _PATIENCE
) -> Iterator[Finding]:
    """Make the checks in the transaction of the examination's connection, which may be READ ONLY. `patience`: its statement timeout."""
    for check in checks:
        finding = _answer(check, examination, patience)
        yield finding
        if check.decides and finding.level == "problem":
            return


@contextmanager
def reading(
    engine: sa.Engine,
    *,
    statement: timedelta = _PATIENCE,
    lock: timedelta = _LOCK_PATIENCE,
    idle: timedelta = 6 * _PATIENCE,
) -> Generator[sa.Connection]:
    """A READ ONLY transaction, rolled back at the end, whose statements are given up after some time."""
    # Stated in case the engine is in AUTOCOMMIT mode.
    level = {"isolation_level": "READ COMMITTED"}
    with engine.connect().execution_options(**level) as connection, connection.begin() as transaction:
        make_reading(connection, statement=statement, lock=lock, idle=idle)
        yield connection
        transaction.rollback()


def make_reading(connection: sa.Connection, *, statement: timedelta, lock: timedelta, idle: timedelta) -> None:
    """Make the connection's new transaction READ ONLY, with these timeouts."""
    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
    limits = {"statement_timeout": statement, "lock_timeout": lock, "idle_in_transaction_session_timeout": idle}
    milliseconds = {name: f"{int(limit.total_seconds() * 1000)}ms" for name, limit in limits.items()}
    # The statistics of a queue's table are often old, and with a plan that trusts them a count would not stop at its cap. JIT
    # compilation of such statements takes longer than their execution.
    planner = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}
    connection.exec_driver_sql(setting({**milliseconds, **planner}, local=True))


def _answer(check: Check, examination: Examination, patience: timedelta) -> Finding:
    """The finding of the check, or that the database refused it or took too long."""
    try:
        with examination.connection.begin_nested():
            return check.look(examination)
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None)
        if state is None or error.connection_invalidated or state[:2] in _AWAY:
            raise
        reason = one_line(mask_passwords(str(error.orig)))
        if state not in _MEANINGS:
            return Finding(check.name, "problem", f"the check failed: {reason}", "see the server's log")
        meaning, advice = _MEANINGS[state]
        detail = f"{meaning.format(patience=patience.total_seconds())}: {reason}"
        return Finding(check.name, "problem" if check.gates else "notice", detail, advice)


#: SQLSTATE classes of lost connections, and of servers in shutdown.
_AWAY = {"08", "58"}
#: Reasons why a check cannot be made, and what to do about it, by SQLSTATE. None is a fault of the queue.
_MEANINGS = {
    "42501": ("this role may not look", "`sa-jobqueue grants --role ROLE --can read` prints the GRANTs that it needs"),
    "57014": ("it took longer than {patience:g} s, and was given up", "check again when the server is less busy"),
    "55P03": ("a table is locked", "check again after the migration or VACUUM FULL that locks it"),
}


# ---- The production checklist, and its checks. docs/howto/production-checklist.md explains each item.

State: TypeAlias = Level | Literal["yours to decide"]


@dataclass(frozen=True, slots=True)
class Item:
    """An item of the checklist."""

    title: str
    checks: tuple[str, ...] = ()
    """The checks of the item; empty if no command can check it."""


#: In the order of the page.
ITEMS: Sequence[Item] = (
    Item("A job is claimed, and owned, in one transaction", ("plans", "locks")),
    Item("Jobs are claimed in a predictable order", ("plans", "waiting")),
    Item("The claim reads an index of queued jobs alone", ("indexes", "plans", "bloat")),
    Item("Finished jobs are out of the claim's way", ("dead-rows", "vacuum")),
    Item("Every queue and every task has workers", ("workers", "queues", "tasks", "wake-ups", "limits")),
    Item("Failed attempts wait, and end", ("failures",)),
    Item("The lease and the timeouts fit the jobs", ("leases", "timeouts")),
    Item("Handlers may run twice"),
    Item("Errors can be found again"),
    Item("Arguments hold no secrets in clear"),
    Item("Work comes in bounded batches"),
    Item("Numbers are watched"),
    Item("Finished jobs are deleted in time", ("cleanup", "archive")),
    Item("The database has room for a queue", ("snapshot", "connections", "notify-queue", "frozen-age", "slots")),
    Item("You know when to take the queue elsewhere"),
)


def states_of(findings: Iterable[Finding]) -> list[tuple[Item, State, list[Finding]]]:
    """Each item with its state, and the findings about it that are not ok.

    An item has the level of its worst check; an item without checks, or whose checks were not made, is yours to decide.
    """
    by_name: Mapping[str, Finding] = {finding.name: finding for finding in findings}
    states: list[tuple[Item, State, list[Finding]]] = []
    for item in ITEMS:
        answers = [by_name[name] for name in item.checks if name in by_name]
        state: State = worst(finding.level for finding in answers) if answers else "yours to decide"
        states.append((item, state, [finding for finding in answers if finding.level != "ok"]))
    return states
