SELECT queue.name,
    date_part('epoch', least((
        SELECT min(first.run_at) AS min_1
        FROM unnest(CAST(%(levels)s::VARCHAR AS SMALLINT[])) AS slot(level)
        JOIN LATERAL (
            SELECT sa_jobqueue.job.run_at AS run_at
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.queue = queue.name
            AND sa_jobqueue.job.priority = slot.level
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.concurrency_key IS NULL
            AND sa_jobqueue.job.id != all(CAST(%(but_ids)s::VARCHAR AS BIGINT[]))
            ORDER BY sa_jobqueue.job.run_at,
                sa_jobqueue.job.id
            LIMIT 1
        ) AS first ON true
    ),
        (
        SELECT sa_jobqueue.job.run_at
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = queue.name
        AND sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        ORDER BY sa_jobqueue.job.run_at
        LIMIT 1
    )
)) - date_part('epoch', now()) AS anon_1,
    (
    SELECT array_remove(ARRAY[CASE WHEN ((
            SELECT 1
            FROM sa_jobqueue.wait
            WHERE sa_jobqueue.wait.resumed_at IS NULL
            LIMIT 1
        ) IS NOT NULL
    ) THEN 'waits' END, CASE WHEN ((
            SELECT 1
            FROM sa_jobqueue.workflow_event
            LIMIT 1
        ) IS NOT NULL OR (
            SELECT 1
            FROM sa_jobqueue.workflow
            WHERE sa_jobqueue.workflow.deadline_at <= now() AND sa_jobqueue.workflow.finished_at IS NULL AND sa_jobqueue.workflow.cancelled_at IS NULL
            LIMIT 1
        ) IS NOT NULL
    ) THEN 'events' END, CASE WHEN ((
            SELECT 1
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.status IN ('queued', 'blocked') AND now() >= least(sa_jobqueue.job.expires_at, sa_jobqueue.job.deadline_at)
            LIMIT 1
        ) IS NOT NULL
    ) THEN 'late' END, CASE WHEN ((
            SELECT 1
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.purge_at <= now()
            LIMIT 1
        ) IS NOT NULL
    ) THEN 'kept' END, CASE WHEN ((
            SELECT 1
            FROM sa_jobqueue.unique_key
            LIMIT 1
        ) IS NOT NULL
    ) THEN 'keys' END, CASE WHEN ((
            SELECT 1
            FROM sa_jobqueue.limit_state
            LIMIT 1
        ) IS NOT NULL
    ) THEN 'states' END, CASE WHEN ((
            SELECT 1
            FROM sa_jobqueue.workflow
            LIMIT 1
        ) IS NOT NULL
    ) THEN 'workflows' END, CASE WHEN ((
            SELECT 1
            FROM sa_jobqueue.job_progress
            LIMIT 1
        ) IS NOT NULL OR (
            SELECT 1
            FROM sa_jobqueue.job_log
            LIMIT 1
        ) IS NOT NULL OR (
            SELECT 1
            FROM sa_jobqueue.step
            LIMIT 1
        ) IS NOT NULL OR (
            SELECT 1
            FROM sa_jobqueue.wait
            WHERE NOT sa_jobqueue.wait.is_new
            LIMIT 1
        ) IS NOT NULL OR (
            SELECT 1
            FROM sa_jobqueue.signal
            LIMIT 1
        ) IS NOT NULL OR (
            SELECT 1
            FROM sa_jobqueue.inbox
            WHERE sa_jobqueue.inbox.done_at <= now() - interval '30 days'
            LIMIT 1
        ) IS NOT NULL
    ) THEN 'notes' END], NULL) AS array_remove_1
) AS anon_2,
    (
    SELECT max(opened.setval_1) AS max_1
    FROM (
        SELECT setval(CAST(concat(concat(quote_ident(%(in_schema)s::VARCHAR), '.gate_'), asked.gate) AS REGCLASS), greatest(CAST(ceil(EXTRACT(epoch FROM clock_timestamp()) + %(open_seconds)s) AS BIGINT), pg_sequence_last_value(CAST(concat(concat(quote_ident(%(in_schema)s::VARCHAR), '.gate_'), asked.gate) AS REGCLASS)))) AS setval_1
        FROM (
            SELECT CAST(hashtext(wanted.queue) & 15 AS TEXT) AS gate
            FROM unnest(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AS wanted(queue)
            UNION ALL
            SELECT 'any'
        ) AS asked
    ) AS opened
) AS anon_3
FROM unnest(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AS queue(name)
WHERE CASE WHEN ((
        SELECT bit_xor(sa_jobqueue.job_limit.version) AS bit_xor_1
        FROM sa_jobqueue.job_limit
    ) IS NOT DISTINCT
    FROM %(known_limits)s::BIGINT AND NOT (EXISTS (
        SELECT true
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = any(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AND sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
    )) AND NOT (EXISTS (
        SELECT true
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = any(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AND sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.run_at <= now()
    ))
) THEN true ELSE sa_jobqueue.limits_changed((
        SELECT bit_xor(sa_jobqueue.job_limit.version) AS bit_xor_1
        FROM sa_jobqueue.job_limit
    )
) END
