"""What presses on the database just now, in one statement: old snapshots, waits for locks, standbys that lag, busy sessions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from .overview import LISTENS_FOR
from .parts import epoch

__all__ = ["database_pressure"]


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

    `store.Pressure` says what each of them is. A role without the rights of `pg_read_all_stats` sees the sessions of its own
    roles only; of the others it sees no more than how many they are, and how many transactions back their snapshots reach.
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
    """What is known of the sessions, by one look at each."""
    here, of = _here(), _ACTIVITY.c
    # VACUUM has a snapshot that holds back no other VACUUM. One of a standby (hot_standby_feedback) has no database, and holds back
    # that of all.
    holds = sa.and_(
        sa.or_(of.datid == here.c.database, of.datid.is_(None)),
        sa.or_(of.backend_xid.is_not(None), of.backend_xmin.is_not(None)),
        of.pid != sa.func.all(here.c.vacuuming),
    )
    # A process of the server has no user. What it does is hidden, too.
    is_client = sa.func.coalesce(of.backend_type == "client backend", of.usesysid.is_not(None))
    # The connections of the workers' own are busy for some milliseconds at a time, whatever the workers do; and when a table is
    # locked, all of them wait for it. What their handlers do does count.
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
        (sa.func.pg_is_in_recovery(), sa.func.pg_last_wal_replay_lsn()),
        else_=sa.func.pg_current_wal_lsn(),
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
    """0 if there was none. And not less: a clock may have been set back."""
    return sa.func.greatest(epoch(sa.func.clock_timestamp() - time), 0.0)


def _number(*criteria: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.count().filter(sa.and_(*criteria))
