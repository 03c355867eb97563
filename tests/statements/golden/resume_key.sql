WITH mine AS MATERIALIZED (
    SELECT sa_jobqueue.job_key.running IS NULL
    AND sa_jobqueue.job_key.rate_count IS NULL
    AND sa_jobqueue.job_key.rate_seconds IS NULL
    AND sa_jobqueue.job_key.rate_burst IS NULL
    AND sa_jobqueue.job_key.rates IS NULL
    AND sa_jobqueue.job_key.weight = 1
    AND sa_jobqueue.job_key.broken_until IS NULL AS gone
    FROM sa_jobqueue.job_key
    WHERE sa_jobqueue.job_key.owner = %(of_owner)s::VARCHAR
    AND sa_jobqueue.job_key.name = %(of_name)s::VARCHAR
    AND sa_jobqueue.job_key.key = %(of_key)s::VARCHAR
    AND sa_jobqueue.job_key.paused_at IS NOT NULL
    FOR UPDATE
),
    deleted AS (
    DELETE
    FROM sa_jobqueue.job_key
    WHERE sa_jobqueue.job_key.owner = %(of_owner)s::VARCHAR
    AND sa_jobqueue.job_key.name = %(of_name)s::VARCHAR
    AND sa_jobqueue.job_key.key = %(of_key)s::VARCHAR
    AND (EXISTS (
        SELECT mine.gone
        FROM mine
        WHERE mine.gone
    ))
    RETURNING sa_jobqueue.job_key.name
),
    changed AS (
    UPDATE sa_jobqueue.job_key
    SET paused_at=NULL,
        pause_reason=NULL
    WHERE sa_jobqueue.job_key.owner = %(of_owner)s::VARCHAR
    AND sa_jobqueue.job_key.name = %(of_name)s::VARCHAR
    AND sa_jobqueue.job_key.key = %(of_key)s::VARCHAR
    AND (EXISTS (
        SELECT mine.gone
        FROM mine
        WHERE NOT mine.gone
    ))
    RETURNING sa_jobqueue.job_key.name
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
SELECT coalesce(sa_jobqueue.job_key.name, %(of_name)s::VARCHAR) AS name
FROM (
    SELECT 1
) AS one
LEFT OUTER JOIN sa_jobqueue.job_key ON sa_jobqueue.job_key.owner = %(of_owner)s::VARCHAR
AND sa_jobqueue.job_key.name = %(of_name)s::VARCHAR
AND sa_jobqueue.job_key.key = %(of_key)s::VARCHAR
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
