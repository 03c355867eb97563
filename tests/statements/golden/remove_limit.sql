WITH mine AS MATERIALIZED (
    SELECT sa_jobqueue.job_limit.declared IS NULL
    AND sa_jobqueue.job_limit.paused_at IS NULL
    AND sa_jobqueue.job_limit.broken_until IS NULL AS gone
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.owner = %(of_owner)s::VARCHAR
    AND sa_jobqueue.job_limit.name = %(of_name)s::VARCHAR
    AND sa_jobqueue.job_limit.held
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
    SET running=CAST(sa_jobqueue.job_limit.declared ->> 'running' AS INTEGER),
        rate_count=CAST(sa_jobqueue.job_limit.declared ->> 'rate_count' AS INTEGER),
        rate_seconds=CAST(sa_jobqueue.job_limit.declared ->> 'rate_seconds' AS DOUBLE PRECISION),
        rate_burst=CAST(sa_jobqueue.job_limit.declared ->> 'rate_burst' AS INTEGER),
        key_running=CAST(sa_jobqueue.job_limit.declared ->> 'key_running' AS INTEGER),
        key_rate_count=CAST(sa_jobqueue.job_limit.declared ->> 'key_rate_count' AS INTEGER),
        key_rate_seconds=CAST(sa_jobqueue.job_limit.declared ->> 'key_rate_seconds' AS DOUBLE PRECISION),
        key_rate_burst=CAST(sa_jobqueue.job_limit.declared ->> 'key_rate_burst' AS INTEGER),
        strict=coalesce(CAST(sa_jobqueue.job_limit.declared ->> 'strict' AS BOOLEAN), false),
        when_full=coalesce(CAST(sa_jobqueue.job_limit.declared ->> 'when_full' AS TEXT), 'wait'),
        max_waiting=CAST(sa_jobqueue.job_limit.declared ->> 'max_waiting' AS INTEGER),
        rates=CAST(sa_jobqueue.job_limit.declared ->> 'rates' AS JSONB),
        key_rates=CAST(sa_jobqueue.job_limit.declared ->> 'key_rates' AS JSONB),
        per=CAST(sa_jobqueue.job_limit.declared ->> 'per' AS JSONB),
        share=coalesce(CAST(sa_jobqueue.job_limit.declared ->> 'share' AS TEXT), 'starts'),
        held=false
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
