"""The table of worker processes, and the server processes behind their connections."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import UUID, insert

from ..models import ArchivedTask, Job, JobMixin, LimitRow, Schedule, WorkerRow
from .admin import UNSYNCHRONIZED, check_criteria
from .archive import archived_names
from .beside import with_companions
from .declared_limits import are_undeclared
from .parts import array, epoch
from .schedules import next_look

__all__ = [
    "EVERY_QUEUE",
    "drain_workers",
    "end_backend",
    "enrol_worker",
    "forget_workers",
    "places_of",
    "remove_worker",
    "served_by",
    "serves",
]

#: Among the queues of a worker: all that it does not name.
EVERY_QUEUE = "*"


def serves(queues: Collection[str], name: str) -> bool:
    """Whether a worker of these queues serves the queue of this name."""
    return name in queues or EVERY_QUEUE in queues


def served_by(queues: sa.ColumnElement[Any], name: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """`serves` in SQL."""
    return sa.or_(name == sa.func.any(queues), sa.literal_column(f"'{EVERY_QUEUE}'", sa.Text) == sa.func.any(queues))


def enrol_worker(
    *,
    id: uuid.UUID,
    host: str,
    pid: int,
    queues: Sequence[str],
    concurrency: int,
    version: str,
    lease: float | None = None,
    schema_version: int | None = None,
    tasks: Mapping[str, Any] = MappingProxyType({}),
    memory: int | None = None,
    loop_lag: float | None = None,
    pressure: str | None = None,
    skipped: Mapping[str, str | None] | None = None,
    slots: Mapping[str, int] | None = None,
    undeclared_for: timedelta = timedelta(minutes=5),
    worker: type[WorkerRow] = WorkerRow,
    schedule: type[Schedule] = Schedule,
    limit: type[LimitRow] = LimitRow,
    archived_task: type[ArchivedTask] = ArchivedTask,
) -> sa.Executable:
    """Insert the row of a worker process; or, where it is there, say that the process was seen now, and what changes of it.

    `lease`, `loop_lag`: seconds. `memory`: bytes. `tasks`, `pressure`, `skipped`, `slots`: see `WorkerRow`.

    Returns the seconds until a schedule is due, or NULL: it costs a worker no statement to know that there is none. The time by the
    database's clock, in seconds since 1970. Whether there are limits that no code has declared for `undeclared_for`. The names of the
    tasks whose jobs are archived. And whether an operator asks this worker to drain.
    """
    changing = {"memory": memory, "loop_lag": loop_lag, "pressure": pressure, "skipped": skipped}
    row = insert(worker).values(
        id=id, host=host, pid=pid, queues=list(queues), concurrency=concurrency, version=version, lease=lease,
        schema_version=schema_version, tasks=dict(tasks), slots=slots, **changing,
    )  # fmt: skip
    return row.on_conflict_do_update(index_elements=["id"], set_={"seen_at": sa.func.now(), **changing}).returning(
        next_look(schedule=schedule).scalar_subquery().label("next_look"),
        epoch(sa.func.clock_timestamp()).label("clock"),
        are_undeclared(after=undeclared_for, limit=limit).label("undeclared"),
        archived_names(archived_task=archived_task).label("archived"),
        worker.drain_requested_at.is_not(None).label("drains"),
    )


def remove_worker(id: uuid.UUID, *, worker: type[WorkerRow] = WorkerRow) -> sa.Executable:
    """Delete the row of a worker process that leaves."""
    return sa.delete(worker).where(worker.id == id)


@with_companions
def drain_workers(
    *where: sa.ColumnExpressionArgument[bool], job: type[JobMixin] = Job, worker: type[WorkerRow] = WorkerRow
) -> sa.Executable:
    """Ask worker processes to drain, as SIGTERM does: they claim no more, let running jobs finish, and end. Returns their ids.

    >>> from sa_jobqueue.models import WorkerRow
    >>> statement = drain_workers(WorkerRow.host == "web-1")

    A worker hears of it when it next renews its row: within a third of its lease, and 20 s at most. Whether another process takes its
    place is for what has started it. One that was asked before is not returned.
    """
    if not where:
        raise ValueError(
            "say which workers: drain_workers(WorkerRow.host == 'web-1'), or drain_workers(true()) for all of them"
        )
    check_criteria("drain_workers", where)
    chosen = (
        sa.select(worker.id).where(worker.drain_requested_at.is_(None), *where).order_by(worker.id).with_for_update()
    )
    return (
        sa.update(worker)
        .where(worker.id.in_(chosen))
        .values(drain_requested_at=sa.func.now())
        .returning(worker.id)
        .execution_options(**UNSYNCHRONIZED)
    )


def forget_workers(*, unseen_for: timedelta, worker: type[WorkerRow] = WorkerRow) -> sa.Executable:
    """Delete the rows of the workers that have not been seen for `unseen_for`."""
    unseen = sa.select(worker.id).where(worker.seen_at < sa.func.now() - unseen_for).with_for_update(skip_locked=True)
    return sa.delete(worker).where(worker.id.in_(unseen))


def places_of(ids: Collection[uuid.UUID], *, worker: type[WorkerRow] = WorkerRow) -> sa.Executable:
    """The id, host and pid of those of these workers whose rows are still there."""
    wanted = array("worker_ids", [str(one) for one in ids], UUID())
    return sa.select(worker.id, worker.host, worker.pid).where(worker.id == sa.func.any(wanted))


def end_backend(pid: int, *, application: str, seconds: float) -> sa.Executable:
    """End another server process, if it is still there, and wait at most `seconds` for its end.

    It must bear this `application_name` and belong to a role of ours: its number may be another's by now.
    """
    processes = sa.table("pg_stat_activity", sa.column("pid"), sa.column("application_name"), sa.column("usesysid")).c
    ended = sa.func.pg_terminate_backend(processes.pid, sa.cast(int(seconds * 1000), sa.BigInteger))
    return sa.select(ended).where(
        processes.pid == pid,
        processes.pid != sa.func.pg_backend_pid(),
        processes.application_name == application,
        sa.func.pg_has_role(processes.usesysid, "USAGE"),
    )
