"""The table of worker processes, and the server processes behind their connections."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, UUID, insert

from ..errors import ConfigurationError
from ..models import Job, JobMixin, companions_of
from ..tasks.options import checked_name
from .admin import UNSYNCHRONIZED, check_criteria
from .archive import archived_names
from .limits.declared import are_undeclared
from .parts import array, epoch
from .readings.depths import LISTENS_FOR
from .schedules.due import next_look
from .tables import StorePart

#: Among the queues of a worker: all that it does not name.
EVERY_QUEUE = "*"
#: The slots of a queue in a process, at most.
MOST_SLOTS = 10_000


def checked_slots(queues: object, *, least: int = 1) -> dict[str, int]:
    """The slots of queues by their names, if each is an integer from `least` to 10,000. Raises ConfigurationError."""
    if not isinstance(queues, Mapping):
        raise ConfigurationError(f"queues are names with their slots, {{'default': 10}}, not {queues!r}")
    for name, slots in queues.items():
        if name != EVERY_QUEUE:
            checked_name(name, "queue", ConfigurationError)
        if isinstance(slots, bool) or not isinstance(slots, int) or not least <= slots <= MOST_SLOTS:
            raise ConfigurationError(f"queue {name!r} needs {least} to {MOST_SLOTS:,} slots, not {slots!r}")
    return dict(queues)


def slots_wanted(wanted: Mapping[str, Any]) -> str:
    """`WorkerRow.wanted` for people: "mail=20", and the reason of a refusal."""
    given = wanted.get("slots")
    slots = " ".join(f"{name}={limit}" for name, limit in given.items()) if isinstance(given, Mapping) else repr(given)
    return f"{slots} refused: {wanted['refused']}" if "refused" in wanted else f"{slots} wanted"


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
    answered: Mapping[str, Any] | None = None,
    refused: str | None = None,
    undeclared_for: timedelta = timedelta(minutes=5),
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Insert the row of a worker process; or, where it is there, say that the process was seen now, and what changes of it.

    `lease`, `loop_lag`: seconds. `memory`: bytes. `tasks`, `pressure`, `skipped`, `slots`: see `WorkerRow`. `answered`: the
    `WorkerRow.wanted` that this worker has followed, or `refused` for this reason; then its slots are written, too.

    Returns the seconds until a schedule is due, or NULL: it costs a worker no statement to know that there is none. The time by the
    database's clock, in seconds since 1970. Whether there are limits that no code has declared for `undeclared_for`. The names of the
    tasks whose jobs are archived. Whether an operator asks this worker to drain. And the slots that an operator wants.
    """
    worker = companions_of(job).worker
    changing: dict[str, Any] = {"memory": memory, "loop_lag": loop_lag, "pressure": pressure, "skipped": skipped}
    row = insert(worker).values(
        id=id, host=host, pid=pid, queues=list(queues), concurrency=concurrency, version=version, lease=lease,
        schema_version=schema_version, tasks=dict(tasks), slots=slots, **changing,
    )  # fmt: skip
    if answered is not None:
        answer = sa.null() if refused is None else sa.cast({**answered, "refused": refused}, JSONB)
        # A newer request of an operator stays.
        wanted = sa.case((worker.wanted == sa.cast(dict(answered), JSONB), answer), else_=worker.wanted)
        changing |= {"queues": list(queues), "concurrency": concurrency, "slots": slots, "wanted": wanted}
    return row.on_conflict_do_update(index_elements=["id"], set_={"seen_at": sa.func.now(), **changing}).returning(
        next_look(job=job).scalar_subquery().label("next_look"),
        epoch(sa.func.clock_timestamp()).label("clock"),
        are_undeclared(after=undeclared_for, job=job).label("undeclared"),
        archived_names(job=job).label("archived"),
        worker.drain_requested_at.is_not(None).label("drains"),
        worker.wanted,
    )


def remove_worker(id: uuid.UUID, *, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete the row of a worker process that leaves."""
    worker = companions_of(job).worker
    return sa.delete(worker).where(worker.id == id)


def drain_workers(*where: sa.ColumnExpressionArgument[bool], job: type[JobMixin] = Job) -> sa.Executable:
    """Ask worker processes to drain, as SIGTERM does: they claim no more, let running jobs finish, and end. Returns their ids.

    >>> from sa_jobqueue.models import WorkerRow
    >>> statement = drain_workers(WorkerRow.host == "web-1")

    A worker reads the request when it next renews its row: within a third of its lease, and 20 s at most. The program that has started
    the worker decides whether another process takes its place. A worker that was asked before is not returned.
    """
    worker = companions_of(job).worker
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


def set_slots(
    *where: sa.ColumnExpressionArgument[bool], slots: Mapping[str, int], job: type[JobMixin] = Job
) -> sa.Executable:
    """Ask running worker processes for other slots, until each process ends. Returns their ids.

    >>> from sa_jobqueue.models import WorkerRow
    >>> statement = set_slots(WorkerRow.host == "web-1", slots={"mail": 20, "old": 0})

    `slots`: the slots by queue, at most 10,000 each. A new queue is added; 0 removes a queue. Other queues keep their slots. A worker reads the request when it next renews its row, as for `drain_workers`. Its row then
    has the new `slots`, or the reason in `wanted`. A worker that is asked to drain is not returned.

    Raises ConfigurationError for slots that no worker can have.
    """
    worker = companions_of(job).worker
    if not where or not slots:
        raise ValueError("say which workers, and their slots: set_slots(WorkerRow.host == 'web-1', slots={'mail': 20})")
    check_criteria("set_slots", where)
    wanted = sa.cast(checked_slots(slots, least=0), JSONB)
    none = sa.cast({}, JSONB)
    earlier = sa.case((worker.wanted.has_key("refused"), none), else_=sa.func.coalesce(worker.wanted["slots"], none))
    chosen = sa.select(worker.id).where(worker.drain_requested_at.is_(None), *where).order_by(worker.id)
    return (
        sa.update(worker)
        .where(worker.id.in_(chosen.with_for_update()))
        .values(wanted=sa.func.jsonb_build_object("slots", earlier.concat(wanted)))
        .returning(worker.id)
        .execution_options(**UNSYNCHRONIZED)
    )


def forget_workers(*, unseen_for: timedelta, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete the rows of the workers that have not been seen for `unseen_for`."""
    worker = companions_of(job).worker
    unseen = sa.select(worker.id).where(worker.seen_at < sa.func.now() - unseen_for).with_for_update(skip_locked=True)
    return sa.delete(worker).where(worker.id.in_(unseen))


def places_of(ids: Collection[uuid.UUID], *, job: type[JobMixin] = Job) -> sa.Executable:
    """id, host and pid of those of these workers whose rows are still there."""
    worker = companions_of(job).worker
    wanted = array("worker_ids", [str(worker_id) for worker_id in ids], UUID())
    return sa.select(worker.id, worker.host, worker.pid).where(worker.id == sa.func.any(wanted))


def terminate_backend(pid: int, *, application: str, seconds: float) -> sa.Executable:
    """End another server process, if it is still there, and wait at most `seconds` for its end.

    The process must have this `application_name` and belong to a role of ours: its number may be used again by now.
    """
    processes = sa.table("pg_stat_activity", sa.column("pid"), sa.column("application_name"), sa.column("usesysid")).c
    ended = sa.func.pg_terminate_backend(processes.pid, sa.cast(int(seconds * 1000), sa.BigInteger))
    return sa.select(ended).where(
        processes.pid == pid,
        processes.pid != sa.func.pg_backend_pid(),
        processes.application_name == application,
        sa.func.pg_has_role(processes.usesysid, "USAGE"),
    )


# ---- The rows of worker processes, and the server processes of connections that broke.


class Enrolled(NamedTuple):
    """The answer to a worker that renews its row.

    `next_look`: seconds until a schedule is due, None: there is none. `clock`: the database's time, in seconds since 1970. `archived`:
    the names of the tasks whose jobs are archived. `undeclared`: whether there are limits that no code declares any more.
    `drains`: whether an operator asks it to drain. `wanted`: as in `WorkerRow`.
    """

    next_look: float | None
    clock: float
    archived: frozenset[str]
    undeclared: bool
    drains: bool
    wanted: dict[str, Any] | None


class Workers(StorePart):
    """Which worker processes there are."""

    def enrol(self, connection: sa.Connection, worker: uuid.UUID, **given: Any) -> Enrolled:
        """Insert or renew the row of this worker process, also if it was pruned meanwhile. `given`: as for `enrol_worker`."""
        row = connection.execute(enrol_worker(id=worker, **given, job=self.job)).one()
        wanted = row.wanted if isinstance(row.wanted, dict) else None
        return Enrolled(row.next_look, row.clock, frozenset(row.archived), row.undeclared, row.drains, wanted)

    def forget_workers(self, connection: sa.Connection, *, unseen_for: timedelta) -> int:
        """Delete the workers that have not been seen for `unseen_for`. Returns how many there were."""
        return connection.execute(forget_workers(unseen_for=unseen_for, job=self.job)).rowcount

    def leave(self, connection: sa.Connection, worker: uuid.UUID) -> None:
        """Delete the row of this worker."""
        connection.execute(remove_worker(worker, job=self.job))


def end_backend(connection: sa.Connection, pid: int, *, application: str, seconds: float) -> None:
    """End the server process of a connection that broke, if it is still there, and wait at most `seconds` for that.

    Its last statement may be at work, unnoticed, and would commit.
    """
    connection.execute(terminate_backend(pid, application=application, seconds=seconds))


# ---- The pressure on the database, read by a single statement: old snapshots, waits for locks, standbys that lag, busy sessions.


def _view(name: str, *columns: str) -> sa.FromClause:
    return sa.table(name, *map(sa.column, columns), schema="pg_catalog").alias(name.removeprefix("pg_"))


_ACTIVITY = _view(
    "pg_stat_activity",
    "pid", "datid", "usesysid", "application_name", "backend_type", "state", "wait_event_type", "xact_start", "backend_xid",
    "backend_xmin",
)  # fmt: skip
_VACUUMS = _view("pg_stat_progress_vacuum", "pid")
_PREPARED = _view("pg_prepared_xacts", "transaction", "prepared", "database")
_SLOTS = _view("pg_replication_slots", "xmin")
_STANDBYS = _view("pg_stat_replication", "state", "replay_lsn", "replay_lag")


def database_pressure() -> sa.Executable:
    """One row: snapshot_seconds, snapshot_xids, lock_waits, replication_seconds, replication_bytes, active, connections, hidden.

    See `Pressure` for their meaning. A role without the rights of `pg_read_all_stats` sees the sessions of its own roles only; of
    other sessions it sees their number, and how many transactions back their snapshots reach.
    """
    sessions, prepared, slots, standbys = _sessions(), _prepared(), _slots(), _standbys()
    return sa.select(
        sa.func.greatest(sessions.c.seconds, prepared.c.seconds).label("snapshot_seconds"),
        sa.func.coalesce(sa.func.greatest(sessions.c.xids, prepared.c.xids, slots.c.xids), 0).label("snapshot_xids"),
        sessions.c.lock_waits,
        standbys.c.seconds.label("replication_seconds"),
        standbys.c.bytes.label("replication_bytes"),
        sessions.c.active,
        sessions.c.connections,
        (sessions.c.hidden + standbys.c.hidden).label("hidden"),
    ).select_from(sessions.join(prepared, sa.true()).join(slots, sa.true()).join(standbys, sa.true()))


def _sessions() -> sa.Subquery:
    """The readings of the sessions, each of which is read once."""
    here, of = _here(), _ACTIVITY.c
    # VACUUM has a snapshot that holds back no other VACUUM. The snapshot of a standby (hot_standby_feedback) has no database, and holds
    # back the VACUUMs of all databases.
    holds = sa.and_(
        sa.or_(of.datid == here.c.database, of.datid.is_(None)),
        sa.or_(of.backend_xid.is_not(None), of.backend_xmin.is_not(None)),
        of.pid != sa.func.all(here.c.vacuuming),
    )
    # A process of the server has no user. What it does is hidden, too.
    is_client = sa.func.coalesce(of.backend_type == "client backend", of.usesysid.is_not(None))
    # The workers' own connections are always busy for some milliseconds at a time; and when a table is locked, all of them wait for it.
    # The connections of handlers do count.
    is_ours = sa.func.coalesce(sa.func.starts_with(of.application_name, LISTENS_FOR), sa.literal_column("false"))
    session = (
        sa.select(
            of.xact_start,
            sa.func.greatest(sa.func.age(of.backend_xid), sa.func.age(of.backend_xmin)).label("xids"),
            holds.label("holds"),
            (of.datid == here.c.database).label("is_here"),
            is_client.label("is_client"),
            is_ours.label("is_ours"),
            (of.wait_event_type == "Lock").label("waits"),
            (of.state == "active").label("is_active"),
            of.backend_type.is_(None).label("is_hidden"),
        )
        .select_from(_ACTIVITY.join(here, sa.true()))
        .where(of.pid != sa.func.pg_backend_pid())
        .subquery("session")
    ).c
    counts = sa.and_(session.is_here, session.is_client, ~session.is_ours)
    return sa.select(
        _seconds_since(sa.func.min(session.xact_start).filter(session.holds)).label("seconds"),
        sa.func.max(session.xids).filter(session.holds).label("xids"),
        _number(counts, session.waits).label("lock_waits"),
        _number(counts, session.is_active).label("active"),
        _number(session.is_client).label("connections"),
        _number(session.is_here, session.is_client, session.is_hidden).label("hidden"),
    ).subquery("sessions")


def _prepared() -> sa.Subquery:
    of = _PREPARED.c
    return (
        sa.select(
            _seconds_since(sa.func.min(of.prepared)).label("seconds"),
            sa.func.max(sa.func.age(of.transaction)).label("xids"),
        )
        .where(of.database == sa.func.current_database())
        .subquery("prepared")
    )


def _slots() -> sa.Subquery:
    return sa.select(sa.func.max(sa.func.age(_SLOTS.c.xmin)).label("xids")).subquery("slots")


def _standbys() -> sa.Subquery:
    of = _STANDBYS.c
    # A standby may have standbys, too.
    written = sa.case(
        (sa.func.pg_is_in_recovery(), sa.func.pg_last_wal_replay_lsn()), else_=sa.func.pg_current_wal_lsn()
    )
    behind = sa.func.max(sa.func.pg_wal_lsn_diff(written, of.replay_lsn))
    return sa.select(
        epoch(sa.func.max(of.replay_lag)).label("seconds"),
        sa.cast(behind, sa.BigInteger).label("bytes"),
        _number(of.state.is_(None)).label("hidden"),
    ).subquery("standbys")


def _here() -> sa.Subquery:
    """This database, and the processes that vacuum."""
    databases = _view("pg_database", "oid", "datname").c
    vacuuming = sa.func.array(sa.select(_VACUUMS.c.pid).scalar_subquery(), type_=sa.ARRAY(sa.Integer))
    return (
        sa.select(databases.oid.label("database"), vacuuming.label("vacuuming"))
        .where(databases.datname == sa.func.current_database())
        .subquery("here")
    )


def _seconds_since(time: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Seconds since `time`, at least 0, also without a time: a clock may have been set back."""
    return sa.func.greatest(epoch(sa.func.clock_timestamp() - time), 0.0)


def _number(*criteria: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.count().filter(sa.and_(*criteria))


# ---- The pressure on a database as a value.


@dataclass(frozen=True, slots=True)
class Pressure:
    """The pressure on a database at a moment. The session that reads it is not counted."""

    snapshot_seconds: float
    """The age of the oldest transaction in this database that keeps VACUUM from removing rows: that of a session, or a prepared transaction.
    0: there is none."""
    snapshot_xids: int
    """How many transactions ago the oldest row version became dead that VACUUM must keep for some session, prepared transaction,
    standby or replication slot."""
    lock_waits: int
    """Sessions in this database that wait for a lock, without the workers' own."""
    replication_seconds: float | None
    """How far the slowest standby is behind, as it reports. None: there is no standby, or all have caught up, or this role may not
    read it."""
    replication_bytes: int | None
    """Bytes of WAL that the slowest standby has not replayed. None: there is no standby, or this role may not read it."""
    active: int
    """Sessions in this database that execute something, without the workers' own."""
    connections: int
    """Sessions of clients on the whole server, busy or not."""
    hidden: int
    """Sessions in this database, and standbys, whose activity this role may not read. `GRANT pg_read_all_stats` shows it."""


def read_pressure(connection: sa.Connection) -> Pressure:
    """Read the pressure. It takes some milliseconds with hundreds of sessions."""
    return Pressure(**connection.execute(database_pressure()).mappings().one())
