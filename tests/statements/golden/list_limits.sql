SELECT found.owner,
    found.name,
    found.key,
    found.running,
    found.rate_count,
    found.rate_seconds,
    found.rate_burst,
    found.rates,
    found.key_running,
    found.key_rate_count,
    found.key_rate_seconds,
    found.key_rate_burst,
    found.key_rates,
    found.strict,
    found.when_full,
    found.max_waiting,
    found.share,
    found.held,
    found.declared,
    found.paused_at,
    found.pause_reason,
    found.broken_until,
    found.weight,
    found.runs,
    found.waits,
    sa_jobqueue.limit_state.blocked_until,
    now() AS now
FROM (
    SELECT sa_jobqueue.job_limit.owner AS owner,
        sa_jobqueue.job_limit.name AS name,
        CAST(NULL AS TEXT) AS key,
        sa_jobqueue.job_limit.running AS running,
        sa_jobqueue.job_limit.rate_count AS rate_count,
        sa_jobqueue.job_limit.rate_seconds AS rate_seconds,
        sa_jobqueue.job_limit.rate_burst AS rate_burst,
        sa_jobqueue.job_limit.rates AS rates,
        sa_jobqueue.job_limit.key_running AS key_running,
        sa_jobqueue.job_limit.key_rate_count AS key_rate_count,
        sa_jobqueue.job_limit.key_rate_seconds AS key_rate_seconds,
        sa_jobqueue.job_limit.key_rate_burst AS key_rate_burst,
        sa_jobqueue.job_limit.key_rates AS key_rates,
        sa_jobqueue.job_limit.strict AS strict,
        sa_jobqueue.job_limit.when_full AS when_full,
        sa_jobqueue.job_limit.max_waiting AS max_waiting,
        sa_jobqueue.job_limit.share AS share,
        sa_jobqueue.job_limit.held AS held,
        sa_jobqueue.job_limit.declared AS declared,
        sa_jobqueue.job_limit.paused_at AS paused_at,
        sa_jobqueue.job_limit.pause_reason AS pause_reason,
        sa_jobqueue.job_limit.broken_until AS broken_until,
        CAST(NULL AS INTEGER) AS weight,
        CASE WHEN (sa_jobqueue.job_limit.owner = 'queue') THEN least((
            SELECT count(*) AS count_1
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'running' AND sa_jobqueue.job.queue = sa_jobqueue.job_limit.name
                LIMIT 10001
            ) AS anon_1
        ),
            10001
    ) ELSE least((
            SELECT count(*) AS count_2
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'running' AND sa_jobqueue.job.task = sa_jobqueue.job_limit.name
                LIMIT 10001
            ) AS anon_2
        ),
            10001
    ) END AS runs,
        CASE WHEN (sa_jobqueue.job_limit.owner = 'queue') THEN least((
            SELECT count(*) AS count_3
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.concurrency_key IS NULL AND sa_jobqueue.job.queue = sa_jobqueue.job_limit.name
                LIMIT 10001
            ) AS anon_3
        ) + (
            SELECT count(*) AS count_4
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.queue = sa_jobqueue.job_limit.name
                LIMIT 10001
            ) AS anon_4
        ) + (
            SELECT count(*) AS count_5
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.queue = sa_jobqueue.job_limit.name
                LIMIT 10001
            ) AS anon_5
        ),
            10001
    ) ELSE least((
            SELECT count(*) AS count_6
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.concurrency_key IS NULL AND sa_jobqueue.job.task = sa_jobqueue.job_limit.name
                LIMIT 10001
            ) AS anon_6
        ) + (
            SELECT count(*) AS count_7
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.task = sa_jobqueue.job_limit.name
                LIMIT 10001
            ) AS anon_7
        ) + (
            SELECT count(*) AS count_8
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.task = sa_jobqueue.job_limit.name
                LIMIT 10001
            ) AS anon_8
        ),
            10001
    ) END AS waits
    FROM sa_jobqueue.job_limit
    UNION ALL
    SELECT sa_jobqueue.job_key.owner AS owner,
        sa_jobqueue.job_key.name AS name,
        sa_jobqueue.job_key.key AS key,
        sa_jobqueue.job_key.running AS running,
        sa_jobqueue.job_key.rate_count AS rate_count,
        sa_jobqueue.job_key.rate_seconds AS rate_seconds,
        sa_jobqueue.job_key.rate_burst AS rate_burst,
        sa_jobqueue.job_key.rates AS rates,
        CAST(NULL AS INTEGER) AS key_running,
        CAST(NULL AS INTEGER) AS key_rate_count,
        CAST(NULL AS DOUBLE PRECISION) AS key_rate_seconds,
        CAST(NULL AS INTEGER) AS key_rate_burst,
        CAST(NULL AS JSONB) AS key_rates,
        CAST(NULL AS BOOLEAN) AS strict,
        CAST(NULL AS TEXT) AS when_full,
        CAST(NULL AS INTEGER) AS max_waiting,
        CAST(NULL AS TEXT) AS share,
        CAST(NULL AS BOOLEAN) AS held,
        CAST(NULL AS JSONB) AS declared,
        sa_jobqueue.job_key.paused_at AS paused_at,
        sa_jobqueue.job_key.pause_reason AS pause_reason,
        sa_jobqueue.job_key.broken_until AS broken_until,
        sa_jobqueue.job_key.weight AS weight,
        CASE WHEN (sa_jobqueue.job_key.owner = 'queue') THEN least((
            SELECT count(*) AS count_9
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'running' AND sa_jobqueue.job.queue = sa_jobqueue.job_key.name AND sa_jobqueue.job.concurrency_key = sa_jobqueue.job_key.key
                LIMIT 10001
            ) AS anon_9
        ),
            10001
    ) ELSE least((
            SELECT count(*) AS count_10
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'running' AND sa_jobqueue.job.task = sa_jobqueue.job_key.name AND sa_jobqueue.job.concurrency_key = sa_jobqueue.job_key.key
                LIMIT 10001
            ) AS anon_10
        ),
            10001
    ) END AS runs,
        CASE WHEN (sa_jobqueue.job_key.owner = 'queue') THEN least((
            SELECT count(*) AS count_11
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.queue = sa_jobqueue.job_key.name AND sa_jobqueue.job.concurrency_key = sa_jobqueue.job_key.key
                LIMIT 10001
            ) AS anon_11
        ) + (
            SELECT count(*) AS count_12
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.queue = sa_jobqueue.job_key.name AND sa_jobqueue.job.concurrency_key = sa_jobqueue.job_key.key
                LIMIT 10001
            ) AS anon_12
        ),
            10001
    ) ELSE least((
            SELECT count(*) AS count_13
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.task = sa_jobqueue.job_key.name AND sa_jobqueue.job.concurrency_key = sa_jobqueue.job_key.key
                LIMIT 10001
            ) AS anon_13
        ) + (
            SELECT count(*) AS count_14
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.task = sa_jobqueue.job_key.name AND sa_jobqueue.job.concurrency_key = sa_jobqueue.job_key.key
                LIMIT 10001
            ) AS anon_14
        ),
            10001
    ) END AS waits
    FROM sa_jobqueue.job_key
) AS found
LEFT OUTER JOIN sa_jobqueue.limit_state ON sa_jobqueue.limit_state.owner = found.owner
AND sa_jobqueue.limit_state.name = found.name
AND sa_jobqueue.limit_state.key = coalesce(found.key, '')
ORDER BY found.owner,
    found.name,
    found.key NULLS FIRST
