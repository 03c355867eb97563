WITH page AS MATERIALIZED (
    SELECT sa_jobqueue.limit_state.owner AS owner,
        sa_jobqueue.limit_state.name AS name,
        sa_jobqueue.limit_state.key AS key
    FROM sa_jobqueue.limit_state
    WHERE (sa_jobqueue.limit_state.owner, sa_jobqueue.limit_state.name, sa_jobqueue.limit_state.key) > (%(after_owner)s::VARCHAR, %(after_name)s::VARCHAR, %(after_key)s::VARCHAR)
    ORDER BY sa_jobqueue.limit_state.owner,
        sa_jobqueue.limit_state.name,
        sa_jobqueue.limit_state.key
    LIMIT %(page)s::INTEGER
),
    mine AS MATERIALIZED (
    SELECT sa_jobqueue.limit_state.owner AS owner,
        sa_jobqueue.limit_state.name AS name,
        sa_jobqueue.limit_state.key AS key
    FROM sa_jobqueue.limit_state
    WHERE (sa_jobqueue.limit_state.owner, sa_jobqueue.limit_state.name, sa_jobqueue.limit_state.key) IN (
        SELECT page.owner,
            page.name,
            page.key
        FROM page
    )
    AND ((sa_jobqueue.limit_state.free_at IS NULL OR sa_jobqueue.limit_state.free_at < now() - %(now_1)s) AND (sa_jobqueue.limit_state.blocked_until IS NULL OR sa_jobqueue.limit_state.blocked_until < now() - %(now_2)s) AND (sa_jobqueue.limit_state.lowest_id IS NULL OR sa_jobqueue.limit_state.key != '') AND (sa_jobqueue.limit_state.failed_at IS NULL OR sa_jobqueue.limit_state.failed_at[1] < now() - %(now_3)s) OR sa_jobqueue.limit_state.lowest_id IS NOT NULL)
    ORDER BY sa_jobqueue.limit_state.owner,
        sa_jobqueue.limit_state.name,
        sa_jobqueue.limit_state.key
    FOR UPDATE SKIP LOCKED
),
    counted AS (
    UPDATE sa_jobqueue.limit_state
    SET lowest_id=%(param_1)s::BIGINT
    WHERE (sa_jobqueue.limit_state.owner, sa_jobqueue.limit_state.name, sa_jobqueue.limit_state.key) IN (
        SELECT mine.owner,
            mine.name,
            mine.key
        FROM mine
    )
    AND NOT ((sa_jobqueue.limit_state.free_at IS NULL OR sa_jobqueue.limit_state.free_at < now() - %(now_1)s) AND (sa_jobqueue.limit_state.blocked_until IS NULL OR sa_jobqueue.limit_state.blocked_until < now() - %(now_2)s) AND (sa_jobqueue.limit_state.lowest_id IS NULL OR sa_jobqueue.limit_state.key != '') AND (sa_jobqueue.limit_state.failed_at IS NULL OR sa_jobqueue.limit_state.failed_at[1] < now() - %(now_3)s))
),
    gone AS (
    DELETE
    FROM sa_jobqueue.limit_state
    WHERE (sa_jobqueue.limit_state.owner, sa_jobqueue.limit_state.name, sa_jobqueue.limit_state.key) IN (
        SELECT mine.owner,
            mine.name,
            mine.key
        FROM mine
    )
    AND (sa_jobqueue.limit_state.free_at IS NULL OR sa_jobqueue.limit_state.free_at < now() - %(now_1)s)
    AND (sa_jobqueue.limit_state.blocked_until IS NULL OR sa_jobqueue.limit_state.blocked_until < now() - %(now_2)s)
    AND (sa_jobqueue.limit_state.lowest_id IS NULL OR sa_jobqueue.limit_state.key != '')
    AND (sa_jobqueue.limit_state.failed_at IS NULL OR sa_jobqueue.limit_state.failed_at[1] < now() - %(now_3)s)
    RETURNING sa_jobqueue.limit_state.owner,
        sa_jobqueue.limit_state.name,
        sa_jobqueue.limit_state.key,
        sa_jobqueue.limit_state.blocked_until
),
    empty AS MATERIALIZED (
    SELECT sa_jobqueue.job_limit.name AS name
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.owner = 'queue'
    AND sa_jobqueue.job_limit.name IN (
        SELECT gone.name
        FROM gone
        WHERE gone.owner = 'queue'
        AND gone.key = ''
        AND gone.blocked_until IS NOT NULL
    )
    AND sa_jobqueue.job_limit.paused_at IS NULL
    AND sa_jobqueue.job_limit.broken_until IS NULL
    AND sa_jobqueue.job_limit.running IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.rate_count IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.rate_seconds IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.rate_burst IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.rates IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.key_running IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.key_rate_count IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.key_rate_seconds IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.key_rate_burst IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.key_rates IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.strict IS NOT DISTINCT
    FROM false
    AND sa_jobqueue.job_limit.when_full IS NOT DISTINCT
    FROM %(when_full_1)s::VARCHAR
    AND sa_jobqueue.job_limit.max_waiting IS NOT DISTINCT
    FROM NULL
    AND sa_jobqueue.job_limit.share IS NOT DISTINCT
    FROM %(share_1)s::VARCHAR
    AND sa_jobqueue.job_limit.per IS NOT DISTINCT
    FROM NULL
    AND NOT sa_jobqueue.job_limit.held
    AND sa_jobqueue.job_limit.declared IS NULL
    FOR UPDATE SKIP LOCKED
),
    unlimited AS (
    DELETE
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.owner = 'queue'
    AND sa_jobqueue.job_limit.name IN (
        SELECT empty.name
        FROM empty
    )
)
SELECT last.owner,
    last.name,
    last.key,
    one.looked_at,
    (
    SELECT count(*) AS count_1
    FROM gone
) AS forgotten,
    (
    SELECT array_agg(sa_jobqueue.limit_state.name) AS array_agg_1
    FROM sa_jobqueue.limit_state
    WHERE (sa_jobqueue.limit_state.owner, sa_jobqueue.limit_state.name, sa_jobqueue.limit_state.key) IN (
        SELECT page.owner,
            page.name,
            page.key
        FROM page
    )
    AND sa_jobqueue.limit_state.owner = 'queue'
    AND sa_jobqueue.limit_state.key = ''
    AND sa_jobqueue.limit_state.blocked_until > now()
    AND NOT (EXISTS (
        SELECT sa_jobqueue.job_limit.name
        FROM sa_jobqueue.job_limit
        WHERE sa_jobqueue.job_limit.owner = 'queue'
        AND sa_jobqueue.job_limit.name = sa_jobqueue.limit_state.name
    ))
) AS unlimited,
    sa_jobqueue.forget_breakers() AS breakers
FROM (
    SELECT count(*) AS looked_at
    FROM page
) AS one
LEFT OUTER JOIN (
    SELECT page.owner AS owner,
        page.name AS name,
        page.key AS key
    FROM page
    ORDER BY page.owner DESC,
        page.name DESC,
        page.key DESC
    LIMIT %(param_2)s::INTEGER
) AS last ON true
