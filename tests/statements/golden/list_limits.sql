SELECT found.owner,
    found.name,
    found.key,
    found."of",
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
    found.per,
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
        CAST(NULL AS TEXT) AS "of",
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
        sa_jobqueue.job_limit.per AS per,
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
        CAST(NULL AS TEXT) AS "of",
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
        CAST(NULL AS JSONB) AS per,
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
    WHERE split_part(sa_jobqueue.job_key.owner, ':', 2) = ''
    UNION ALL
    SELECT others.owner AS owner,
        others.name AS name,
        others.key AS key,
        others."of" AS "of",
        others.running AS running,
        others.rate_count AS rate_count,
        others.rate_seconds AS rate_seconds,
        others.rate_burst AS rate_burst,
        others.rates AS rates,
        CAST(NULL AS INTEGER) AS key_running,
        CAST(NULL AS INTEGER) AS key_rate_count,
        CAST(NULL AS DOUBLE PRECISION) AS key_rate_seconds,
        CAST(NULL AS INTEGER) AS key_rate_burst,
        CAST(NULL AS JSONB) AS key_rates,
        CAST(NULL AS BOOLEAN) AS strict,
        CAST(NULL AS TEXT) AS when_full,
        CAST(NULL AS INTEGER) AS max_waiting,
        CAST(NULL AS TEXT) AS share,
        CAST(NULL AS JSONB) AS per,
        CAST(NULL AS BOOLEAN) AS held,
        CAST(NULL AS JSONB) AS declared,
        others.paused_at AS paused_at,
        others.pause_reason AS pause_reason,
        others.broken_until AS broken_until,
        others.weight AS weight,
        CASE WHEN (others.owner = 'queue') THEN least((
            SELECT count(*) AS count_15
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'running' AND sa_jobqueue.job.queue = others.name AND ((sa_jobqueue.job.extras -> 'keys') ->> others."of") = others.key
                LIMIT 10001
            ) AS anon_15
        ),
            10001
    ) ELSE least((
            SELECT count(*) AS count_16
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'running' AND sa_jobqueue.job.task = others.name AND ((sa_jobqueue.job.extras -> 'keys') ->> others."of") = others.key
                LIMIT 10001
            ) AS anon_16
        ),
            10001
    ) END AS runs,
        CASE WHEN (others.owner = 'queue') THEN least((
            SELECT count(*) AS count_17
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.queue = others.name AND ((sa_jobqueue.job.extras -> 'keys') ->> others."of") = others.key
                LIMIT 10001
            ) AS anon_17
        ) + (
            SELECT count(*) AS count_18
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.queue = others.name AND ((sa_jobqueue.job.extras -> 'keys') ->> others."of") = others.key
                LIMIT 10001
            ) AS anon_18
        ),
            10001
    ) ELSE least((
            SELECT count(*) AS count_19
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.task = others.name AND ((sa_jobqueue.job.extras -> 'keys') ->> others."of") = others.key
                LIMIT 10001
            ) AS anon_19
        ) + (
            SELECT count(*) AS count_20
            FROM (
                SELECT sa_jobqueue.job.id AS id
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.task = others.name AND ((sa_jobqueue.job.extras -> 'keys') ->> others."of") = others.key
                LIMIT 10001
            ) AS anon_20
        ),
            10001
    ) END AS waits
    FROM (
        SELECT split_part(sa_jobqueue.job_key.owner, ':', 1) AS owner,
            split_part(sa_jobqueue.job_key.owner, ':', 2) AS "of",
            sa_jobqueue.job_key.name AS name,
            sa_jobqueue.job_key.key AS key,
            sa_jobqueue.job_key.running AS running,
            sa_jobqueue.job_key.rate_count AS rate_count,
            sa_jobqueue.job_key.rate_seconds AS rate_seconds,
            sa_jobqueue.job_key.rate_burst AS rate_burst,
            sa_jobqueue.job_key.rates AS rates,
            sa_jobqueue.job_key.weight AS weight,
            sa_jobqueue.job_key.paused_at AS paused_at,
            sa_jobqueue.job_key.pause_reason AS pause_reason,
            sa_jobqueue.job_key.broken_until AS broken_until
        FROM sa_jobqueue.job_key
        WHERE split_part(sa_jobqueue.job_key.owner, ':', 2) != ''
    ) AS others
) AS found
LEFT OUTER JOIN sa_jobqueue.limit_state ON sa_jobqueue.limit_state.owner = found.owner
AND sa_jobqueue.limit_state.name = found.name
AND sa_jobqueue.limit_state.key = coalesce(found.key, '')
AND found."of" IS NULL
ORDER BY found.owner,
    found.name,
    found."of" NULLS FIRST,
    found.key NULLS FIRST
