SELECT sa_jobqueue.worker.id,
    sa_jobqueue.worker.host,
    sa_jobqueue.worker.pid,
    sa_jobqueue.worker.queues,
    sa_jobqueue.worker.concurrency,
    sa_jobqueue.worker.version,
    sa_jobqueue.worker.schema_version,
    sa_jobqueue.worker.lease,
    sa_jobqueue.worker.memory,
    sa_jobqueue.worker.loop_lag,
    sa_jobqueue.worker.pressure,
    sa_jobqueue.worker.drain_requested_at,
    sa_jobqueue.worker.started_at,
    sa_jobqueue.worker.seen_at,
    sa_jobqueue.worker.slots,
    sa_jobqueue.worker.wanted,
    CAST(EXTRACT(epoch FROM now() - sa_jobqueue.worker.started_at) AS FLOAT) AS age,
    CAST(EXTRACT(epoch FROM now() - sa_jobqueue.worker.seen_at) AS FLOAT) AS unseen,
    EXTRACT(epoch FROM now() - sa_jobqueue.worker.seen_at) > %(param_1)s
OR (
    SELECT count(*) AS count_1
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'running'
    AND sa_jobqueue.job.worker = CAST(sa_jobqueue.worker.id AS TEXT)
    AND sa_jobqueue.job.lease_expires_at <= now()
) > %(param_2)s::INTEGER AS stale,
    (
    SELECT count(*) AS count_1
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'running'
    AND sa_jobqueue.job.worker = CAST(sa_jobqueue.worker.id AS TEXT)
) AS running,
    concat(%(concat_1)s::VARCHAR, CAST(sa_jobqueue.worker.id AS TEXT)) IN (
    SELECT left(pg_catalog.pg_stat_activity.application_name, %(left_2)s::INTEGER) AS left_1
    FROM pg_catalog.pg_stat_activity
    WHERE pg_catalog.pg_stat_activity.datname = current_database()
) AS listening
FROM sa_jobqueue.worker
ORDER BY sa_jobqueue.worker.started_at,
    sa_jobqueue.worker.id
