WITH mine AS MATERIALIZED (
    SELECT NOT sa_jobqueue.job_limit.held
    AND sa_jobqueue.job_limit.declared IS NULL
    AND sa_jobqueue.job_limit.running IS NULL
    AND sa_jobqueue.job_limit.rate_count IS NULL
    AND sa_jobqueue.job_limit.rate_seconds IS NULL
    AND sa_jobqueue.job_limit.rate_burst IS NULL
    AND sa_jobqueue.job_limit.rates IS NULL
    AND sa_jobqueue.job_limit.key_running IS NULL
    AND sa_jobqueue.job_limit.key_rate_count IS NULL
    AND sa_jobqueue.job_limit.key_rate_seconds IS NULL
    AND sa_jobqueue.job_limit.key_rate_burst IS NULL
    AND sa_jobqueue.job_limit.key_rates IS NULL
    AND sa_jobqueue.job_limit.strict = false
    AND sa_jobqueue.job_limit.when_full = 'wait'
    AND sa_jobqueue.job_limit.max_waiting IS NULL
    AND sa_jobqueue.job_limit.share = 'starts'
    AND sa_jobqueue.job_limit.per IS NULL
    AND sa_jobqueue.job_limit.broken_until IS NULL AS gone
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.owner = %(of_owner)s::VARCHAR
    AND sa_jobqueue.job_limit.name = %(of_name)s::VARCHAR
    AND sa_jobqueue.job_limit.paused_at IS NOT NULL
    FOR UPDATE
),
    deleted AS (
    DELETE
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.owner = %(of_owner)s::VARCHAR
    AND sa_jobqueue.job_limit.name = %(of_name)s::VARCHAR
    AND (EXISTS (
        SELECT mine.gone
        FROM mine
        WHERE mine.gone
    ))
    RETURNING sa_jobqueue.job_limit.name
),
    changed AS (
    UPDATE sa_jobqueue.job_limit
    SET paused_at=NULL,
        pause_reason=NULL
    WHERE sa_jobqueue.job_limit.owner = %(of_owner)s::VARCHAR
    AND sa_jobqueue.job_limit.name = %(of_name)s::VARCHAR
    AND (EXISTS (
        SELECT mine.gone
        FROM mine
        WHERE NOT mine.gone
    ))
    RETURNING sa_jobqueue.job_limit.name
),
    lifted AS (
    UPDATE sa_jobqueue.limit_state
    SET blocked_until=now()
    WHERE sa_jobqueue.limit_state.key = %(of_key)s::VARCHAR
    AND sa_jobqueue.limit_state.owner = %(of_owner)s::VARCHAR
    AND sa_jobqueue.limit_state.name = %(of_name)s::VARCHAR
    AND sa_jobqueue.limit_state.blocked_until > now()
    RETURNING sa_jobqueue.limit_state.name
)
SELECT coalesce(sa_jobqueue.job_limit.name, %(of_name)s::VARCHAR) AS name
FROM (
    SELECT 1
) AS one
LEFT OUTER JOIN sa_jobqueue.job_limit ON sa_jobqueue.job_limit.owner = %(of_owner)s::VARCHAR
AND sa_jobqueue.job_limit.name = %(of_name)s::VARCHAR
WHERE (EXISTS (
    SELECT deleted.name
    FROM deleted
))
OR (EXISTS (
    SELECT changed.name
    FROM changed
))
OR (EXISTS (
    SELECT lifted.name
    FROM lifted
))
