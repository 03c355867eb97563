WITH mine AS MATERIALIZED (
    SELECT sa_jobqueue.job_key.paused_at IS NULL
    AND sa_jobqueue.job_key.broken_until IS NULL AS gone
    FROM sa_jobqueue.job_key
    WHERE sa_jobqueue.job_key.owner = %(of_owner)s::VARCHAR
    AND sa_jobqueue.job_key.name = %(of_name)s::VARCHAR
    AND sa_jobqueue.job_key.key = %(of_key)s::VARCHAR
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
    SET running=%(param_1)s::INTEGER,
        rate_count=%(param_2)s::INTEGER,
        rate_seconds=%(param_3)s,
        rate_burst=%(param_4)s::INTEGER,
        rates=%(param_5)s::JSONB,
        weight=1
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
