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
),
    ring(queue, key, number) AS (
    SELECT place.queue AS queue,
        next_key.key AS key,
        1 AS number
    FROM place
    JOIN LATERAL (
        SELECT sa_jobqueue.job.concurrency_key AS key
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        AND sa_jobqueue.job.queue = place.queue
        AND sa_jobqueue.job.concurrency_key >= chr(2)
        ORDER BY sa_jobqueue.job.queue,
            sa_jobqueue.job.concurrency_key,
            -sa_jobqueue.job.priority,
            sa_jobqueue.job.run_at,
            sa_jobqueue.job.id
        LIMIT 1
    ) AS next_key ON true
    UNION ALL
    SELECT ring.queue AS queue,
        next_key.key AS key,
        ring.number + 1 AS anon_3
    FROM ring
    JOIN LATERAL (
        SELECT sa_jobqueue.job.concurrency_key AS key
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        AND sa_jobqueue.job.queue = ring.queue
        AND sa_jobqueue.job.concurrency_key > ring.key
        ORDER BY sa_jobqueue.job.queue,
            sa_jobqueue.job.concurrency_key,
            -sa_jobqueue.job.priority,
            sa_jobqueue.job.run_at,
            sa_jobqueue.job.id
        LIMIT 1
    ) AS next_key ON true
    WHERE ring.number < %(keys)s::INTEGER
)
SELECT seen.queue,
    count(*) AS number
FROM (
    SELECT ring.queue AS queue
    FROM ring
    LIMIT %(cap)s::INTEGER
) AS seen
GROUP BY seen.queue
ORDER BY seen.queue
