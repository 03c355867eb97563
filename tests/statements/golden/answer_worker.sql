INSERT INTO sa_jobqueue.worker (id, host, pid, queues, concurrency, version, lease, schema_version, memory, loop_lag, tasks, pressure, skipped, slots) VALUES (%(id)s::UUID, %(host)s::VARCHAR, %(pid)s::INTEGER, %(queues)s::TEXT[], %(concurrency)s::INTEGER, %(version)s::VARCHAR, %(lease)s, %(schema_version)s::INTEGER, %(memory)s::BIGINT, %(loop_lag)s, %(tasks)s::JSONB, %(pressure)s::VARCHAR, %(skipped)s::JSONB, %(slots)s::JSONB) ON CONFLICT (id) DO
UPDATE
SET queues = %(param_1)s::TEXT[],
    concurrency = %(param_2)s::INTEGER,
    seen_at = now(),
    memory = %(param_3)s::BIGINT,
    loop_lag = %(param_4)s,
    pressure = %(param_5)s::VARCHAR,
    skipped = %(param_6)s::JSONB,
    slots = %(param_7)s::JSONB,
    wanted = CASE WHEN (sa_jobqueue.worker.wanted = CAST(%(param_8)s::JSONB AS JSONB)) THEN NULL ELSE sa_jobqueue.worker.wanted END
RETURNING (
    SELECT date_part('epoch', sa_jobqueue.schedule.due_at) - date_part('epoch', clock_timestamp()) AS anon_1
    FROM sa_jobqueue.schedule
    WHERE sa_jobqueue.schedule.paused_at IS NULL
    ORDER BY sa_jobqueue.schedule.due_at
    LIMIT 1
) AS next_look,
    date_part('epoch', clock_timestamp()) AS clock,
    EXISTS (
    SELECT 1
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.declared_at < now() - %(now_1)s
    AND NOT sa_jobqueue.job_limit.held
    AND sa_jobqueue.job_limit.paused_at IS NULL
    AND sa_jobqueue.job_limit.broken_until IS NULL
) AS undeclared,
    array((
        SELECT sa_jobqueue.archived_task.name
        FROM sa_jobqueue.archived_task
    )
) AS archived,
    sa_jobqueue.worker.drain_requested_at IS NOT NULL AS drains,
    sa_jobqueue.worker.wanted
