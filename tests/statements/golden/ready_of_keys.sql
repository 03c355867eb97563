WITH RECURSIVE place(queue, number) AS (
    SELECT (
        SELECT sa_jobqueue.job.queue
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        ORDER BY sa_jobqueue.job.queue
        LIMIT 1
    ) AS queue,
        1 AS number
    UNION ALL
    SELECT (
        SELECT sa_jobqueue.job.queue
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        AND sa_jobqueue.job.queue > place.queue
        ORDER BY sa_jobqueue.job.queue
        LIMIT 1
    ) AS anon_1,
        place.number + 1 AS anon_2
    FROM place
    WHERE place.queue IS NOT NULL
    AND place.number < %(queues)s::INTEGER
)
SELECT asked.owner,
    asked.name,
    asked.key,
    least((
        SELECT count(*) AS count_1
        FROM place
        JOIN LATERAL (
            SELECT sa_jobqueue.job.task AS task
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
            AND sa_jobqueue.job.queue = place.queue
            AND sa_jobqueue.job.concurrency_key = coalesce(asked.key, chr(1) || asked.name)
            ORDER BY sa_jobqueue.job.queue,
                sa_jobqueue.job.concurrency_key,
                -sa_jobqueue.job.priority,
                sa_jobqueue.job.run_at,
                sa_jobqueue.job.id
            LIMIT %(cap)s::INTEGER
        ) AS page ON true
        WHERE place.queue IS NOT NULL
        AND (asked.owner = 'task' OR place.queue = asked.name)
        AND (asked.owner = 'queue' OR page.task = asked.name)
    ),
        %(cap)s::INTEGER
) AS due
FROM unnest(CAST(%(paused_owners)s::VARCHAR AS TEXT[]), CAST(%(paused_names)s::VARCHAR AS TEXT[]), CAST(%(paused_keys)s::VARCHAR AS TEXT[])) AS asked(owner, name, key)
