SELECT (
    SELECT bit_xor(sa_jobqueue.job_limit.version) AS bit_xor_1
    FROM sa_jobqueue.job_limit
) AS version,
    (
    SELECT array_agg(asked.name) AS array_agg_1
    FROM unnest(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AS asked(name)
    WHERE (EXISTS (
        SELECT true
        FROM sa_jobqueue.job_limit
        WHERE sa_jobqueue.job_limit.owner = 'queue'
        AND sa_jobqueue.job_limit.name = asked.name
    ))
    OR (EXISTS (
        SELECT true
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = asked.name
        AND sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
    ))
    OR (EXISTS (
        SELECT true
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = asked.name
        AND sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
    ))
) AS queues,
    (
    SELECT array_agg(asked.name) AS array_agg_2
    FROM unnest(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AS asked(name)
    WHERE EXISTS (
        SELECT true
        FROM sa_jobqueue.job_limit
        WHERE sa_jobqueue.job_limit.owner = 'queue'
        AND sa_jobqueue.job_limit.name = asked.name
        AND (sa_jobqueue.job_limit.running IS NOT NULL OR sa_jobqueue.job_limit.rate_count IS NOT NULL OR sa_jobqueue.job_limit.rates IS NOT NULL)
    )
) AS capped,
    (
    SELECT array_agg(sa_jobqueue.job_limit.name) AS array_agg_3
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.owner = 'task'
    AND (NOT (sa_jobqueue.job_limit.paused_at IS NULL AND sa_jobqueue.job_limit.broken_until IS NULL AND sa_jobqueue.job_limit.running IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.rate_count IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.rate_seconds IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.rate_burst IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.rates IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.key_running IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.key_rate_count IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.key_rate_seconds IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.key_rate_burst IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.key_rates IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.strict IS NOT DISTINCT FROM false AND sa_jobqueue.job_limit.when_full IS NOT DISTINCT FROM %(when_full_1)s::VARCHAR AND sa_jobqueue.job_limit.max_waiting IS NOT DISTINCT FROM NULL AND sa_jobqueue.job_limit.share IS NOT DISTINCT FROM %(share_1)s::VARCHAR AND sa_jobqueue.job_limit.per IS NOT DISTINCT FROM NULL) OR (EXISTS (
        SELECT true
        FROM sa_jobqueue.job_key
        WHERE sa_jobqueue.job_key.name = sa_jobqueue.job_limit.name
        AND sa_jobqueue.job_key.owner = sa_jobqueue.job_limit.owner
    )) OR (EXISTS (
        SELECT true
        FROM sa_jobqueue.job_key
        WHERE sa_jobqueue.job_key.name = sa_jobqueue.job_limit.name
        AND (sa_jobqueue.job_key.rates IS NOT NULL OR sa_jobqueue.job_key.owner LIKE '%%:%%')
        AND sa_jobqueue.job_key.owner LIKE 'task:%%'
    )))
) AS tasks,
    (
    SELECT array_agg(sa_jobqueue.job_limit.name) AS array_agg_4
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.owner = 'task'
    AND (sa_jobqueue.job_limit.broken_until IS NOT NULL OR (EXISTS (
        SELECT true
        FROM sa_jobqueue.job_key
        WHERE sa_jobqueue.job_key.name = sa_jobqueue.job_limit.name
        AND sa_jobqueue.job_key.broken_until IS NOT NULL
    )))
) AS broken
