"""The server's own figures: what holds old rows back, connections, replication, locks, blocks read and written.

These are statements over the catalogs, which a role with Can.READ may execute. Of sessions of other roles it sees process, name
and snapshot, but no times, states and queries, unless it is a member of `pg_read_all_stats`. PostgreSQL 15 to 18.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from ...util.schema import quote

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
    """A row per server that replicates from this server; on a standby also a row for itself, named ''.

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
    """Sessions that use one of these tables and wait for a lock, the longest first, each with the first session in its way.

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

# ---- How large the tables and indexes are, what is dead in them, and when they were vacuumed: by PostgreSQL's own books.


def identities(*, schema: str, tables: Sequence[str]) -> sa.Executable:
    """The name of each of these tables that numbers its rows by a column `id`, and its sequence, quoted."""
    return sa.text(_IDENTITIES).bindparams(in_schema=schema, tables=list(tables))


_IDENTITIES = """
SELECT rel.relname::text, pg_get_serial_sequence(quote_ident(:in_schema) || '.' || quote_ident(rel.relname), 'id')
FROM pg_catalog.pg_class AS rel
JOIN pg_catalog.pg_attribute AS attribute ON attribute.attrelid = rel.oid AND attribute.attname = 'id'
WHERE rel.relnamespace = to_regnamespace(quote_ident(:in_schema)) AND rel.relname = ANY (CAST(:tables AS text[]))
    AND attribute.attidentity <> ''
ORDER BY rel.relname
"""


def next_ids(*, schema: str, sequences: Mapping[str, str]) -> sa.Executable:
    """A row per table: the id that its next row gets, and the highest there is. `sequences`: as `identities` returned them.

    One statement: its snapshot is older than what it reads of a sequence, so a row that is inserted meanwhile has no higher id.
    """
    parts = (
        f'SELECT CAST(:name_{number} AS text) AS "table", last_value + CAST(is_called AS integer) AS next, '  # noqa: S608
        f"coalesce((SELECT max(id) FROM {_verbatim(f'{quote(schema)}.{quote(table)}')}), 0) AS highest FROM {_verbatim(sequence)}"
        for number, (table, sequence) in enumerate(sequences.items())
    )
    names = {f"name_{number}": table for number, table in enumerate(sequences)}
    return sa.text(" UNION ALL ".join(parts)).bindparams(**names)


def _verbatim(name: str) -> str:
    """`name` for `text()`: a colon starts no parameter."""
    return name.replace(":", r"\:")


def table_sizes(*, schema: str, tables: Sequence[str]) -> sa.Executable:
    """A row per table: rows alive and dead as PostgreSQL counts them, sizes in bytes, the age of its oldest transaction, and
    seconds since the last vacuum and the last analyze, NULL if there was none.

    `row_bytes`: the mean size of a row, by the statistics of the last analyze; NULL before the first.
    """
    return sa.text(_TABLES).bindparams(in_schema=schema, tables=list(tables))


_TABLES = """
SELECT rel.relname::text AS name,
    coalesce(stat.n_live_tup, 0) AS live, coalesce(stat.n_dead_tup, 0) AS dead,
    greatest(rel.reltuples, 0)::bigint AS planned_rows,
    stat.n_mod_since_analyze AS changed_since_analyze,
    coalesce(pg_relation_size(rel.oid), 0) AS bytes, coalesce(pg_indexes_size(rel.oid), 0) AS index_bytes,
    coalesce(pg_total_relation_size(nullif(rel.reltoastrelid, 0)), 0) AS toast_bytes,
    current_setting('block_size')::int AS block_bytes,
    -- A row's header of 24 bytes, 4 for the pointer to it, 4 of padding in the mean, and its values.
    32 + (
        SELECT sum((1 - null_frac) * avg_width) FROM pg_catalog.pg_stats
        WHERE schemaname = :in_schema AND tablename = rel.relname AND NOT inherited
    )::float8 AS row_bytes,
    coalesce(rel.reloptions, '{}') AS options,
    extract(epoch FROM now() - greatest(stat.last_vacuum, stat.last_autovacuum))::float8 AS since_vacuum,
    extract(epoch FROM now() - greatest(stat.last_analyze, stat.last_autoanalyze))::float8 AS since_analyze,
    stat.vacuum_count AS vacuums, stat.autovacuum_count AS autovacuums,
    greatest(age(rel.relfrozenxid), age(toast.relfrozenxid))::bigint AS frozen_age,
    stat.seq_scan AS seq_scans, stat.seq_tup_read AS seq_rows,
    io.heap_blks_read AS blocks_read, io.heap_blks_hit AS blocks_hit,
    coalesce(io.idx_blks_read, 0) AS index_blocks_read, coalesce(io.idx_blks_hit, 0) AS index_blocks_hit
FROM pg_catalog.pg_class AS rel
LEFT JOIN pg_catalog.pg_class AS toast ON toast.oid = rel.reltoastrelid
JOIN pg_catalog.pg_stat_all_tables AS stat ON stat.relid = rel.oid
JOIN pg_catalog.pg_statio_all_tables AS io ON io.relid = rel.oid
WHERE rel.relnamespace = to_regnamespace(quote_ident(:in_schema)) AND rel.relname = ANY (CAST(:tables AS text[]))
ORDER BY rel.relname
"""


def index_sizes(*, schema: str, tables: Sequence[str]) -> sa.Executable:
    """A row per index of these tables: whether it is valid, its size, and how often it was read.

    `entry_bytes`: the mean size of an entry, by the statistics of the table; NULL where these are missing.
    """
    return sa.text(_INDEXES).bindparams(in_schema=schema, tables=list(tables))


_INDEXES = """
SELECT of_table.relname::text AS "table", rel.relname::text AS name,
    index.indisvalid AS valid, index.indisready AS ready,
    EXISTS (
        SELECT FROM pg_catalog.pg_stat_progress_create_index AS build WHERE build.index_relid = rel.oid
    ) AS building, index.indisunique AS "unique",
    coalesce(pg_relation_size(rel.oid), 0) AS bytes, greatest(rel.reltuples, 0)::bigint AS planned_rows,
    current_setting('block_size')::int AS block_bytes,
    -- An entry's header of 8 bytes, 4 for the pointer to it, its values, and 4 of padding in the mean; an expression as a time.
    16 + (
        SELECT sum(CASE WHEN part.number = 0 THEN 8 ELSE (1 - value.null_frac) * value.avg_width END)
        FROM unnest(index.indkey) AS part (number)
        LEFT JOIN pg_catalog.pg_attribute AS attribute
            ON attribute.attrelid = index.indrelid AND attribute.attnum = part.number
        LEFT JOIN pg_catalog.pg_stats AS value
            ON value.schemaname = :in_schema AND value.tablename = of_table.relname AND value.attname = attribute.attname
                AND NOT value.inherited
        HAVING bool_and(part.number = 0 OR value.avg_width IS NOT NULL)
    )::float8 AS entry_bytes,
    coalesce(rel.reloptions, '{}') AS options,
    stat.idx_scan AS scans, stat.idx_tup_read AS rows_read, stat.idx_tup_fetch AS rows_fetched
FROM pg_catalog.pg_index AS index
JOIN pg_catalog.pg_class AS rel ON rel.oid = index.indexrelid
JOIN pg_catalog.pg_class AS of_table ON of_table.oid = index.indrelid
JOIN pg_catalog.pg_stat_all_indexes AS stat ON stat.indexrelid = index.indexrelid
WHERE of_table.relnamespace = to_regnamespace(quote_ident(:in_schema)) AND of_table.relname = ANY (CAST(:tables AS text[]))
ORDER BY of_table.relname, rel.relname
"""
