"""What presses on the database just now, in one statement: old snapshots, waits for locks, standbys that lag, busy sessions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    Subquery,
    and_,
    case,
    cast,
    column,
    func,
    literal_column,
    or_,
    select,
    table,
    true,
)

from .overview import LISTENS_FOR
from .parts import epoch

__all__ = ["database_pressure"]


def _view(name: str, *columns: str) -> FromClause:
    return table(name, *map(column, columns), schema="pg_catalog").alias(name.removeprefix("pg_"))


_ACTIVITY = _view(
    "pg_stat_activity",
    "pid", "datid", "usesysid", "application_name", "backend_type", "state", "wait_event_type", "xact_start", "backend_xid",
    "backend_xmin",
)  # fmt: skip
_VACUUMS = _view("pg_stat_progress_vacuum", "pid")
_PREPARED = _view("pg_prepared_xacts", "transaction", "prepared", "database")
_SLOTS = _view("pg_replication_slots", "xmin")
_STANDBYS = _view("pg_stat_replication", "state", "replay_lsn", "replay_lag")


def database_pressure() -> Executable:
    """One row: snapshot_seconds, snapshot_xids, lock_waits, replication_seconds, replication_bytes, active, connections, hidden.

    `store.Pressure` says what each of them is. A role without the rights of `pg_read_all_stats` sees the sessions of its own
    roles only; of the others it sees no more than how many they are, and how many transactions back their snapshots reach.
    """
    sessions, prepared, slots, standbys = _sessions(), _prepared(), _slots(), _standbys()
    return select(
        func.greatest(sessions.c.seconds, prepared.c.seconds).label("snapshot_seconds"),
        func.coalesce(func.greatest(sessions.c.xids, prepared.c.xids, slots.c.xids), 0).label("snapshot_xids"),
        sessions.c.lock_waits,
        standbys.c.seconds.label("replication_seconds"),
        standbys.c.bytes.label("replication_bytes"),
        sessions.c.active,
        sessions.c.connections,
        (sessions.c.hidden + standbys.c.hidden).label("hidden"),
    ).select_from(sessions.join(prepared, true()).join(slots, true()).join(standbys, true()))


def _sessions() -> Subquery:
    """What is known of the sessions, by one look at each."""
    here, of = _here(), _ACTIVITY.c
    # VACUUM has a snapshot that holds back no other VACUUM. One of a standby (hot_standby_feedback) has no database, and holds back
    # that of all.
    holds = and_(
        or_(of.datid == here.c.database, of.datid.is_(None)),
        or_(of.backend_xid.is_not(None), of.backend_xmin.is_not(None)),
        of.pid != func.all(here.c.vacuuming),
    )
    # A process of the server has no user. What it does is hidden, too.
    is_client = func.coalesce(of.backend_type == "client backend", of.usesysid.is_not(None))
    # The connections of the workers' own are busy for some milliseconds at a time, whatever the workers do; and when a table is
    # locked, all of them wait for it. What their handlers do does count.
    is_ours = func.coalesce(func.starts_with(of.application_name, LISTENS_FOR), literal_column("false"))
    session = (
        select(
            of.xact_start,
            func.greatest(func.age(of.backend_xid), func.age(of.backend_xmin)).label("xids"),
            holds.label("holds"),
            (of.datid == here.c.database).label("is_here"),
            is_client.label("is_client"),
            is_ours.label("is_ours"),
            (of.wait_event_type == "Lock").label("waits"),
            (of.state == "active").label("is_active"),
            of.backend_type.is_(None).label("is_hidden"),
        )
        .select_from(_ACTIVITY.join(here, true()))
        .where(of.pid != func.pg_backend_pid())
        .subquery("session")
    ).c
    counts = and_(session.is_here, session.is_client, ~session.is_ours)
    return select(
        _seconds_since(func.min(session.xact_start).filter(session.holds)).label("seconds"),
        func.max(session.xids).filter(session.holds).label("xids"),
        _number(counts, session.waits).label("lock_waits"),
        _number(counts, session.is_active).label("active"),
        _number(session.is_client).label("connections"),
        _number(session.is_here, session.is_client, session.is_hidden).label("hidden"),
    ).subquery("sessions")


def _prepared() -> Subquery:
    of = _PREPARED.c
    return (
        select(
            _seconds_since(func.min(of.prepared)).label("seconds"),
            func.max(func.age(of.transaction)).label("xids"),
        )
        .where(of.database == func.current_database())
        .subquery("prepared")
    )


def _slots() -> Subquery:
    return select(func.max(func.age(_SLOTS.c.xmin)).label("xids")).subquery("slots")


def _standbys() -> Subquery:
    of = _STANDBYS.c
    # A standby may have standbys, too.
    written = case(
        (func.pg_is_in_recovery(), func.pg_last_wal_replay_lsn()),
        else_=func.pg_current_wal_lsn(),
    )
    behind = func.max(func.pg_wal_lsn_diff(written, of.replay_lsn))
    return select(
        epoch(func.max(of.replay_lag)).label("seconds"),
        cast(behind, BigInteger).label("bytes"),
        _number(of.state.is_(None)).label("hidden"),
    ).subquery("standbys")


def _here() -> Subquery:
    """This database, and the processes that vacuum."""
    databases = _view("pg_database", "oid", "datname").c
    vacuuming = func.array(select(_VACUUMS.c.pid).scalar_subquery(), type_=ARRAY(Integer))
    return (
        select(databases.oid.label("database"), vacuuming.label("vacuuming"))
        .where(databases.datname == func.current_database())
        .subquery("here")
    )


def _seconds_since(time: ColumnElement[Any]) -> ColumnElement[Any]:
    """0 if there was none. And not less: a clock may have been set back."""
    return func.greatest(epoch(func.clock_timestamp() - time), 0.0)


def _number(*criteria: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count().filter(and_(*criteria))
