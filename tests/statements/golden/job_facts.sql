SELECT asked.job_id AS asked,
    statement_timestamp() AS now,
    (
    SELECT sa_jobqueue.job.id
    FROM sa_jobqueue.job
    ORDER BY sa_jobqueue.job.id DESC
    LIMIT 1
) AS newest,
    me.id,
    me.status,
    me.queue,
    me.task,
    me.priority,
    me.attempt,
    me.max_attempts,
    me.rescues,
    me.claims,
    CASE WHEN (me.run_at < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (me.run_at > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE me.run_at END AS run_at,
    CASE WHEN (me.created_at < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (me.created_at > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE me.created_at END AS created_at,
    CASE WHEN (me.claimed_at < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (me.claimed_at > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE me.claimed_at END AS claimed_at,
    CASE WHEN (me.lease_expires_at < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (me.lease_expires_at > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE me.lease_expires_at END AS lease_expires_at,
    CASE WHEN (me.finished_at < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (me.finished_at > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE me.finished_at END AS finished_at,
    CASE WHEN (me.cancel_requested_at < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (me.cancel_requested_at > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE me.cancel_requested_at END AS cancel_requested_at,
    CASE WHEN (me.expires_at < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (me.expires_at > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE me.expires_at END AS expires_at,
    CASE WHEN (me.deadline_at < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (me.deadline_at > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE me.deadline_at END AS deadline_at,
    me.concurrency_key,
    me.workflow_id,
    me.worker,
    me.duplicate_of,
    me.error,
    CASE WHEN (jsonb_typeof(me.extras -> 'version') = 'number') THEN left(me.extras ->> 'version', 8) WHEN (jsonb_typeof(me.extras -> 'version') IS NOT NULL) THEN '?' END AS version,
    holder.host,
    holder.pid,
    holder.seen_at,
    crew.live,
    crew.serving,
    crew.knowing,
    crew.slots,
    crew.pressure_on,
    crew.pressure,
    crew.refused_by,
    crew.refused_at,
    crew.refusal,
    held.busy,
    ahead.ahead,
    (
    SELECT CAST(min(pg_catalog.pg_locks.pid) AS INTEGER) AS min_1
    FROM pg_catalog.pg_locks
    WHERE me.status = 'queued'
    AND pg_catalog.pg_locks.locktype = 'transactionid'
    AND pg_catalog.pg_locks.granted
    AND pg_catalog.pg_locks.transactionid = me.locker
    AND pg_catalog.pg_locks.pid != pg_backend_pid()
) AS locked_by
FROM unnest(CAST(%(job_ids)s::VARCHAR AS BIGINT[])) AS asked(job_id)
LEFT OUTER JOIN LATERAL (
    SELECT one.id AS id,
        one.status AS status,
        one.queue AS queue,
        one.task AS task,
        one.priority AS priority,
        one.attempt AS attempt,
        one.max_attempts AS max_attempts,
        one.rescues AS rescues,
        one.claims AS claims,
        one.run_at AS run_at,
        one.created_at AS created_at,
        one.claimed_at AS claimed_at,
        one.lease_expires_at AS lease_expires_at,
        one.finished_at AS finished_at,
        one.cancel_requested_at AS cancel_requested_at,
        one.expires_at AS expires_at,
        one.deadline_at AS deadline_at,
        one.concurrency_key AS concurrency_key,
        one.workflow_id AS workflow_id,
        one.worker AS worker,
        one.duplicate_of AS duplicate_of,
        one.extras AS extras,
        one.errors[-1] AS error,
        one.xmax AS locker
    FROM sa_jobqueue.job AS one
    WHERE one.id = asked.job_id
    LIMIT 1
) AS me ON true
LEFT OUTER JOIN LATERAL (
    SELECT sa_jobqueue.worker.host AS host,
        sa_jobqueue.worker.pid AS pid,
        sa_jobqueue.worker.seen_at AS seen_at
    FROM sa_jobqueue.worker
    WHERE CAST(sa_jobqueue.worker.id AS TEXT) = me.worker
    LIMIT 1
) AS holder ON true
LEFT OUTER JOIN LATERAL (
    SELECT count(*) AS live,
        count(*) FILTER (WHERE me.queue = any(sa_jobqueue.worker.queues) OR '*' = any(sa_jobqueue.worker.queues)) AS serving,
        count(*) FILTER (WHERE (me.queue = any(sa_jobqueue.worker.queues) OR '*' = any(sa_jobqueue.worker.queues)) AND (sa_jobqueue.worker.tasks = '{}'::jsonb OR jsonb_path_exists(sa_jobqueue.worker.tasks, '$.keyvalue() ? (@.key == $task || @.value.aliases[*] == $task) ? ($version <= 1 || @.value.version >= $version)'::jsonpath, jsonb_build_object('task', me.task, 'version', coalesce(me.extras -> 'version', '1'::jsonb)), true))) AS knowing,
        CAST(coalesce(sum(coalesce(CAST(sa_jobqueue.worker.slots ->> me.queue AS INTEGER), CAST(sa_jobqueue.worker.slots ->> '*' AS INTEGER), sa_jobqueue.worker.concurrency)) FILTER (WHERE (me.queue = any(sa_jobqueue.worker.queues) OR '*' = any(sa_jobqueue.worker.queues)) AND (sa_jobqueue.worker.tasks = '{}'::jsonb OR jsonb_path_exists(sa_jobqueue.worker.tasks, '$.keyvalue() ? (@.key == $task || @.value.aliases[*] == $task) ? ($version <= 1 || @.value.version >= $version)'::jsonpath, jsonb_build_object('task', me.task, 'version', coalesce(me.extras -> 'version', '1'::jsonb)), true))), 0) AS INTEGER) AS slots,
        count(*) FILTER (WHERE (me.queue = any(sa_jobqueue.worker.queues) OR '*' = any(sa_jobqueue.worker.queues)) AND (sa_jobqueue.worker.tasks = '{}'::jsonb OR jsonb_path_exists(sa_jobqueue.worker.tasks, '$.keyvalue() ? (@.key == $task || @.value.aliases[*] == $task) ? ($version <= 1 || @.value.version >= $version)'::jsonpath, jsonb_build_object('task', me.task, 'version', coalesce(me.extras -> 'version', '1'::jsonb)), true)) AND sa_jobqueue.worker.pressure IS NOT NULL) AS pressure_on,
        min(sa_jobqueue.worker.pressure) FILTER (WHERE (me.queue = any(sa_jobqueue.worker.queues) OR '*' = any(sa_jobqueue.worker.queues)) AND (sa_jobqueue.worker.tasks = '{}'::jsonb OR jsonb_path_exists(sa_jobqueue.worker.tasks, '$.keyvalue() ? (@.key == $task || @.value.aliases[*] == $task) ? ($version <= 1 || @.value.version >= $version)'::jsonpath, jsonb_build_object('task', me.task, 'version', coalesce(me.extras -> 'version', '1'::jsonb)), true))) AS pressure,
        count(*) FILTER (WHERE (me.queue = any(sa_jobqueue.worker.queues) OR '*' = any(sa_jobqueue.worker.queues)) AND (sa_jobqueue.worker.skipped ? CAST(me.id AS TEXT))) AS refused_by,
        min(concat(sa_jobqueue.worker.host, ':', CAST(sa_jobqueue.worker.pid AS TEXT))) FILTER (WHERE (me.queue = any(sa_jobqueue.worker.queues) OR '*' = any(sa_jobqueue.worker.queues)) AND (sa_jobqueue.worker.skipped ? CAST(me.id AS TEXT))) AS refused_at,
        min(sa_jobqueue.worker.skipped ->> CAST(me.id AS TEXT)) FILTER (WHERE (me.queue = any(sa_jobqueue.worker.queues) OR '*' = any(sa_jobqueue.worker.queues)) AND (sa_jobqueue.worker.skipped ? CAST(me.id AS TEXT))) AS refusal,
        array_agg(CAST(sa_jobqueue.worker.id AS TEXT)) FILTER (WHERE (me.queue = any(sa_jobqueue.worker.queues) OR '*' = any(sa_jobqueue.worker.queues)) AND (sa_jobqueue.worker.tasks = '{}'::jsonb OR jsonb_path_exists(sa_jobqueue.worker.tasks, '$.keyvalue() ? (@.key == $task || @.value.aliases[*] == $task) ? ($version <= 1 || @.value.version >= $version)'::jsonpath, jsonb_build_object('task', me.task, 'version', coalesce(me.extras -> 'version', '1'::jsonb)), true))) AS ids
    FROM sa_jobqueue.worker
    WHERE sa_jobqueue.worker.seen_at > statement_timestamp() + -60.0 * interval '1 second'
    AND me.finished_at IS NULL
) AS crew ON true
LEFT OUTER JOIN LATERAL (
    SELECT count(*) AS busy
    FROM sa_jobqueue.worker AS holding
    JOIN sa_jobqueue.job ON sa_jobqueue.job.worker = CAST(holding.id AS TEXT)
    WHERE sa_jobqueue.job.status = 'running'
    AND me.status = 'queued'
    AND sa_jobqueue.job.worker = any(crew.ids)
    AND (sa_jobqueue.job.queue = me.queue OR NOT ((coalesce(holding.slots, '{}'::jsonb) ? me.queue)) AND NOT ((coalesce(holding.slots, '{}'::jsonb) ? sa_jobqueue.job.queue)))
) AS held ON true
LEFT OUTER JOIN LATERAL (
    SELECT count(*) AS ahead
    FROM (
        SELECT parts.one AS one
        FROM (
            SELECT of_level.one AS one
            FROM generate_series(me.priority + 1, 9) AS level(priority)
            JOIN LATERAL (
                SELECT 1 AS one
                FROM sa_jobqueue.job AS other
                WHERE me.status = 'queued'
                AND me.run_at <= statement_timestamp()
                AND me.concurrency_key IS NULL
                AND other.status = 'queued'
                AND other.queue = me.queue
                AND other.concurrency_key IS NULL
                AND other.priority = level.priority
                AND other.run_at <= statement_timestamp()
                ORDER BY other.run_at,
                    other.id
                LIMIT 1001
            ) AS of_level ON true
            UNION ALL
            SELECT before.one AS one
            FROM (
                SELECT 1 AS one
                FROM sa_jobqueue.job AS other
                WHERE me.status = 'queued'
                AND me.run_at <= statement_timestamp()
                AND me.concurrency_key IS NULL
                AND other.status = 'queued'
                AND other.queue = me.queue
                AND other.concurrency_key IS NULL
                AND other.priority = me.priority
                AND (other.run_at, other.id) < (me.run_at, me.id)
                ORDER BY other.run_at,
                    other.id
                LIMIT 1001
            ) AS before
            UNION ALL
            SELECT of_key.one AS one
            FROM (
                SELECT 1 AS one
                FROM sa_jobqueue.job AS other
                WHERE me.status = 'queued'
                AND me.run_at <= statement_timestamp()
                AND me.concurrency_key IS NOT NULL
                AND other.status = 'queued'
                AND other.queue = me.queue
                AND other.concurrency_key = me.concurrency_key
                AND other.run_at <= greatest(other.created_at, other.ready_at)
                AND (-other.priority, other.run_at, other.id) < (-me.priority, me.run_at, me.id)
                ORDER BY -other.priority,
                    other.run_at,
                    other.id
                LIMIT 1001
            ) AS of_key
        ) AS parts
        LIMIT 1001
    ) AS found
) AS ahead ON true
ORDER BY asked.job_id
