"""What PostgreSQL says of itself: who holds old rows back, connections, replication, locks, blocks read and written.

These are statements over the catalogs, which a role with Can.READ may execute. Of sessions of other roles it sees process, name
and snapshot, but no times, states and queries, unless it is a member of `pg_read_all_stats`. PostgreSQL 15 to 18.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

__all__ = ["block_io", "lock_waits", "server_facts", "slots", "snapshot_holders", "standbys"]

#: Settings that decide when tables are vacuumed, how many may connect, and whether times of blocks are measured.
_SETTINGS = (
    "autovacuum",
    "autovacuum_freeze_max_age",
    "autovacuum_vacuum_threshold",
    "autovacuum_vacuum_scale_factor",
    "max_connections",
    "superuser_reserved_connections",
    "reserved_connections",  # PostgreSQL 16
    "track_io_timing",
)


def server_facts() -> sa.Executable:
    """One row: the server's version, `settings` as a JSON object, sessions, the notification queue, and the database's own counters.

    A session whose kind is hidden from this role is counted as a client's.
    """
    return sa.text(_SERVER).bindparams(settings=list(_SETTINGS))


_SERVER = """
SELECT current_setting('server_version') AS version,
    current_setting('server_version_num')::int AS version_number,
    pg_is_in_recovery() AS in_recovery,
    current_database()::text AS database,
    current_user::text AS role,
    pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
    (SELECT jsonb_object_agg(name, setting) FROM pg_catalog.pg_settings WHERE name = ANY (CAST(:settings AS text[]))) AS settings,
    pg_notification_queue_usage()::float8 AS notify_queue,
    sessions.*,
    age(own.datfrozenxid)::bigint AS frozen_age,
    stat.xact_commit AS commits, stat.xact_rollback AS rollbacks, stat.deadlocks, stat.conflicts, stat.temp_bytes,
    stat.blks_read AS blocks_read, stat.blks_hit AS blocks_hit,
    stat.blk_read_time / 1000 AS read_seconds, stat.blk_write_time / 1000 AS write_seconds
FROM pg_catalog.pg_database AS own
JOIN pg_catalog.pg_stat_database AS stat ON stat.datid = own.oid
CROSS JOIN (
    SELECT count(*) AS connections,
        count(*) FILTER (WHERE datname = current_database()) AS connections_here,
        count(*) FILTER (WHERE state = 'active') AS connections_active,
        count(*) FILTER (WHERE state LIKE 'idle in transaction%') AS connections_idle_in_transaction,
        count(*) FILTER (WHERE starts_with(application_name, 'sa-jobqueue')) AS connections_of_queue
    FROM pg_catalog.pg_stat_activity
    WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
) AS sessions
WHERE own.datname = current_database()
"""


def snapshot_holders(limit: int = 10) -> sa.Executable:
    """What keeps VACUUM from removing dead rows of this database, the oldest first, at most `limit`.

    `kind`: session, prepared (a prepared transaction), slot (a replication slot) or standby (one with hot_standby_feedback).
    `xids`: how many transactions have begun since. `seconds` is NULL where it is unknown or hidden from this role.
    The snapshots of VACUUM itself hold nothing back.
    """
    return sa.text(_HOLDERS).bindparams(most=limit)


_HOLDERS = """
SELECT * FROM (
    SELECT CASE WHEN backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS kind,
        greatest(age(backend_xmin), age(backend_xid))::bigint AS xids,
        extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
        application_name AS name, usename::text AS role, pid, state, query_start,
        CASE WHEN state IS NOT NULL THEN left(query, 200) END AS query
    FROM pg_catalog.pg_stat_activity
    WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        AND (datname = current_database() OR backend_type = 'walsender')
        AND pid <> pg_backend_pid()
        AND coalesce(backend_type, '') <> 'autovacuum worker'
        AND pid NOT IN (SELECT pid FROM pg_catalog.pg_stat_progress_vacuum)
    UNION ALL
    SELECT 'prepared', age(transaction)::bigint, extract(epoch FROM clock_timestamp() - prepared)::float8,
        gid, owner::text, NULL, NULL, prepared, NULL
    FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'slot', age(xmin)::bigint, NULL, slot_name::text, NULL, active_pid, NULL, NULL, NULL
    FROM pg_catalog.pg_replication_slots WHERE xmin IS NOT NULL
) AS holder
ORDER BY xids DESC, seconds DESC NULLS LAST
LIMIT :most
"""


def slots() -> sa.Executable:
    """A row per replication slot: `retained` are the bytes of WAL that the server keeps for it.

    `xmin_age` holds back all rows, `catalog_xmin_age` those of the catalogs alone.
    """
    return sa.text(_SLOTS)


_POSITION = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END"

_SLOTS = f"""
SELECT slot_name::text AS name, slot_type AS kind, active, database::text AS database, wal_status,
    pg_wal_lsn_diff({_POSITION}, restart_lsn)::bigint AS retained,
    age(xmin)::bigint AS xmin_age, age(catalog_xmin)::bigint AS catalog_xmin_age
FROM pg_catalog.pg_replication_slots ORDER BY slot_name
"""  # noqa: S608


def standbys() -> sa.Executable:
    """A row per server that follows this one; on a standby one more, itself, named ''.

    `bytes` of WAL are not replayed there yet, and by `seconds` it is behind. Both are NULL where they are unknown, or hidden.
    """
    return sa.text(_STANDBYS)


_STANDBYS = f"""
SELECT application_name AS name, host(client_addr) AS address, state,
    pg_wal_lsn_diff({_POSITION}, replay_lsn)::bigint AS bytes, extract(epoch FROM replay_lag)::float8 AS seconds
FROM pg_catalog.pg_stat_replication
UNION ALL
SELECT '', NULL, 'recovering', pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::bigint,
    CASE WHEN pg_last_wal_receive_lsn() IS DISTINCT FROM pg_last_wal_replay_lsn()
        THEN extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8 ELSE 0 END
WHERE pg_is_in_recovery()
ORDER BY 1
"""  # noqa: S608


def lock_waits(*, schema: str, tables: Sequence[str], limit: int = 20) -> sa.Executable:
    """Sessions that use one of these tables and wait for a lock, the longest first, and the first one that is in their way.

    Who waits for a row waits for the end of the transaction that has it, so its lock names no table: it is the table that this
    session uses.
    """
    return sa.text(_LOCK_WAITS).bindparams(in_schema=schema, tables=list(tables), most=limit)


_LOCK_WAITS = """
WITH locks AS MATERIALIZED (SELECT * FROM pg_catalog.pg_locks),
ours AS (
    SELECT oid, relname FROM pg_catalog.pg_class
    WHERE relnamespace = to_regnamespace(quote_ident(:in_schema)) AND relname = ANY (CAST(:tables AS text[]))
),
waits AS MATERIALIZED (
    SELECT wait.pid, used.relname::text AS "table", wait.mode,
        extract(epoch FROM clock_timestamp() - wait.waitstart)::float8 AS seconds, pg_blocking_pids(wait.pid) AS blocked_by
    FROM locks AS wait
    JOIN LATERAL (
        SELECT ours.relname FROM locks AS held JOIN ours ON ours.oid = held.relation
        WHERE held.pid = wait.pid AND held.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        ORDER BY held.granted, ours.relname LIMIT 1
    ) AS used ON true
    WHERE NOT wait.granted
    ORDER BY wait.waitstart LIMIT :most
)
SELECT waits.*, own.application_name AS name, own.usename::text AS role,
    blocker.application_name AS blocker_name, blocker.usename::text AS blocker_role, blocker.state AS blocker_state
FROM waits
LEFT JOIN pg_catalog.pg_stat_activity AS own ON own.pid = waits.pid
LEFT JOIN pg_catalog.pg_stat_activity AS blocker ON blocker.pid = waits.blocked_by[1]
ORDER BY seconds DESC NULLS LAST
"""


def block_io() -> sa.Executable:
    """Blocks of tables and indexes by the kind of process that read or wrote them, for the whole server. PostgreSQL 16 and later.

    The seconds are 0 without `track_io_timing`.
    """
    return sa.text(_BLOCK_IO)


_BLOCK_IO = """
SELECT backend_type AS process,
    sum(coalesce(reads, 0))::bigint AS reads, sum(coalesce(writes, 0))::bigint AS writes,
    sum(coalesce(extends, 0))::bigint AS extends, sum(coalesce(hits, 0))::bigint AS hits,
    sum(coalesce(evictions, 0))::bigint AS evictions, sum(coalesce(fsyncs, 0))::bigint AS fsyncs,
    sum(coalesce(read_time, 0)) / 1000 AS read_seconds, sum(coalesce(write_time, 0)) / 1000 AS write_seconds
FROM pg_catalog.pg_stat_io WHERE object = 'relation'
GROUP BY backend_type
HAVING sum(coalesce(reads, 0) + coalesce(writes, 0) + coalesce(extends, 0) + coalesce(hits, 0)) > 0
ORDER BY backend_type
"""
