SELECT greatest(sessions.seconds, prepared.seconds) AS snapshot_seconds,
    coalesce(greatest(sessions.xids, prepared.xids, slots.xids), %(coalesce_1)s::INTEGER) AS snapshot_xids,
    sessions.lock_waits,
    standbys.seconds AS replication_seconds,
    standbys.bytes AS replication_bytes,
    sessions.active,
    sessions.connections,
    sessions.hidden + standbys.hidden AS hidden
FROM (
    SELECT greatest(date_part('epoch', clock_timestamp() - (min(session.xact_start) FILTER (WHERE session.holds))), %(greatest_1)s) AS seconds,
        max(session.xids) FILTER (WHERE session.holds) AS xids,
        count(*) FILTER (WHERE session.is_here AND session.is_client AND NOT session.is_ours AND session.waits) AS lock_waits,
        count(*) FILTER (WHERE session.is_here AND session.is_client AND NOT session.is_ours AND session.is_active) AS active,
        count(*) FILTER (WHERE session.is_client) AS connections,
        count(*) FILTER (WHERE session.is_here AND session.is_client AND session.is_hidden) AS hidden
    FROM (
        SELECT stat_activity.xact_start AS xact_start,
            greatest(age(stat_activity.backend_xid), age(stat_activity.backend_xmin)) AS xids,
            (stat_activity.datid = here.database OR stat_activity.datid IS NULL)
        AND (stat_activity.backend_xid IS NOT NULL OR stat_activity.backend_xmin IS NOT NULL)
        AND stat_activity.pid != all(here.vacuuming) AS holds,
            stat_activity.datid = here.database AS is_here,
            coalesce(stat_activity.backend_type = %(backend_type_1)s::VARCHAR, stat_activity.usesysid IS NOT NULL) AS is_client,
            coalesce(starts_with(stat_activity.application_name, %(starts_with_1)s::VARCHAR), false) AS is_ours,
            stat_activity.wait_event_type = %(wait_event_type_1)s::VARCHAR AS waits,
            stat_activity.state = %(state_1)s::VARCHAR AS is_active,
            stat_activity.backend_type IS NULL AS is_hidden
        FROM pg_catalog.pg_stat_activity AS stat_activity
        JOIN (
            SELECT database.oid AS database,
                array((
                    SELECT stat_progress_vacuum.pid
                    FROM pg_catalog.pg_stat_progress_vacuum AS stat_progress_vacuum
                )
            ) AS vacuuming
            FROM pg_catalog.pg_database AS database
            WHERE database.datname = current_database()
        ) AS here ON true
        WHERE stat_activity.pid != pg_backend_pid()
    ) AS session
) AS sessions
JOIN (
    SELECT greatest(date_part('epoch', clock_timestamp() - min(prepared_xacts.prepared)), %(greatest_2)s) AS seconds,
        max(age(prepared_xacts.transaction)) AS xids
    FROM pg_catalog.pg_prepared_xacts AS prepared_xacts
    WHERE prepared_xacts.database = current_database()
) AS prepared ON true
JOIN (
    SELECT max(age(replication_slots.xmin)) AS xids
    FROM pg_catalog.pg_replication_slots AS replication_slots
) AS slots ON true
JOIN (
    SELECT date_part('epoch', max(stat_replication.replay_lag)) AS seconds,
        CAST(max(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, stat_replication.replay_lsn)) AS BIGINT) AS bytes,
        count(*) FILTER (WHERE stat_replication.state IS NULL) AS hidden
    FROM pg_catalog.pg_stat_replication AS stat_replication
) AS standbys ON true
