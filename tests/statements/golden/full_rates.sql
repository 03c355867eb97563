SELECT rate.owner,
    rate.name,
    nullif(rate.key, '') AS key,
    rate.count AS starts,
    rate.seconds,
    rate.burst,
    (((sa_jobqueue.rate_owed(rate.free_at, rate.owed_at, rate.owed, statement_timestamp(), rate.count, rate.seconds) + 1) - rate.burst) * rate.seconds) / CAST(CAST(rate.count AS FLOAT(53)) AS FLOAT(53)) AS "left"
FROM (
    SELECT state.free_at AS free_at,
        state.blocked_until AS blocked_until,
        state.owed_at AS owed_at,
        state.owed AS owed,
        state.lowest_id AS lowest_id,
        state.version AS version,
        state.failed_at AS failed_at,
        state.owner AS owner,
        state.name AS name,
        state.key AS key,
        CASE WHEN (state.key = '') THEN sa_jobqueue.job_limit.rate_count WHEN (sa_jobqueue.job_key.rate_count IS NOT NULL) THEN sa_jobqueue.job_key.rate_count ELSE sa_jobqueue.job_limit.key_rate_count END AS count,
        CASE WHEN (state.key = '') THEN sa_jobqueue.job_limit.rate_seconds WHEN (sa_jobqueue.job_key.rate_count IS NOT NULL) THEN sa_jobqueue.job_key.rate_seconds ELSE sa_jobqueue.job_limit.key_rate_seconds END AS seconds,
        CASE WHEN (state.key = '') THEN sa_jobqueue.job_limit.rate_burst WHEN (sa_jobqueue.job_key.rate_count IS NOT NULL) THEN sa_jobqueue.job_key.rate_burst ELSE sa_jobqueue.job_limit.key_rate_burst END AS burst
    FROM (
        SELECT sa_jobqueue.limit_state.free_at AS free_at,
            sa_jobqueue.limit_state.blocked_until AS blocked_until,
            sa_jobqueue.limit_state.owed_at AS owed_at,
            sa_jobqueue.limit_state.owed AS owed,
            sa_jobqueue.limit_state.lowest_id AS lowest_id,
            sa_jobqueue.limit_state.version AS version,
            sa_jobqueue.limit_state.failed_at AS failed_at,
            sa_jobqueue.limit_state.owner AS owner,
            sa_jobqueue.limit_state.name AS name,
            sa_jobqueue.limit_state.key AS key
        FROM sa_jobqueue.limit_state
        LIMIT %(cap)s::INTEGER
    ) AS state
    LEFT OUTER JOIN sa_jobqueue.job_limit ON sa_jobqueue.job_limit.owner = state.owner
    AND sa_jobqueue.job_limit.name = state.name
    LEFT OUTER JOIN sa_jobqueue.job_key ON sa_jobqueue.job_key.owner = state.owner
    AND sa_jobqueue.job_key.name = state.name
    AND sa_jobqueue.job_key.key = state.key
) AS rate
WHERE rate.count IS NOT NULL
AND (sa_jobqueue.rate_owed(rate.free_at, rate.owed_at, rate.owed, statement_timestamp(), rate.count, rate.seconds) + 1) - rate.burst > 0.000001
ORDER BY rate.owner,
    rate.name,
    rate.key
LIMIT %(most)s::INTEGER
