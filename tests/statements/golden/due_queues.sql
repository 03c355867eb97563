WITH RECURSIVE names(queue, number) AS (
    SELECT least((
            SELECT sa_jobqueue.job.queue
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.concurrency_key IS NULL
            ORDER BY sa_jobqueue.job.queue
            LIMIT 1
        ),
            (
            SELECT sa_jobqueue.job.queue
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
            ORDER BY sa_jobqueue.job.queue
            LIMIT 1
        ),
            (
            SELECT sa_jobqueue.job.queue
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
            ORDER BY sa_jobqueue.job.queue
            LIMIT 1
        )
    ) AS queue,
        1 AS number
    UNION ALL
    SELECT least((
            SELECT sa_jobqueue.job.queue
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.concurrency_key IS NULL
            AND sa_jobqueue.job.queue > names.queue
            ORDER BY sa_jobqueue.job.queue
            LIMIT 1
        ),
            (
            SELECT sa_jobqueue.job.queue
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
            AND sa_jobqueue.job.queue > names.queue
            ORDER BY sa_jobqueue.job.queue
            LIMIT 1
        ),
            (
            SELECT sa_jobqueue.job.queue
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
            AND sa_jobqueue.job.queue > names.queue
            ORDER BY sa_jobqueue.job.queue
            LIMIT 1
        )
    ) AS least_1,
        names.number + 1 AS anon_1
    FROM names
    WHERE names.queue IS NOT NULL
    AND names.number < %(queues)s::INTEGER
)
SELECT names.queue
FROM names
WHERE names.queue IS NOT NULL
AND coalesce((
        SELECT 1
        FROM unnest(CAST(%(priorities)s::VARCHAR AS SMALLINT[])) AS slot(priority)
        JOIN LATERAL (
            SELECT 1
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.queue = names.queue
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.concurrency_key IS NULL
            AND sa_jobqueue.job.priority = slot.priority
            AND sa_jobqueue.job.run_at <= now()
            ORDER BY sa_jobqueue.job.run_at
            LIMIT 1
        ) AS found ON true
        LIMIT 1
    ),
        (
        SELECT 1
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = names.queue
        AND sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        LIMIT 1
    ),
        (
        SELECT 1
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = names.queue
        AND sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        AND sa_jobqueue.job.run_at <= now()
        LIMIT 1
    )
) IS NOT NULL
