WITH RECURSIVE names(queue, number) AS (
    SELECT (
        SELECT sa_jobqueue.job.queue
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.status = 'queued'
        ORDER BY sa_jobqueue.job.queue
        LIMIT 1
    ) AS queue,
        1 AS number
    UNION ALL
    SELECT (
        SELECT sa_jobqueue.job.queue
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.queue > names.queue
        ORDER BY sa_jobqueue.job.queue
        LIMIT 1
    ) AS anon_2,
        names.number + 1 AS anon_3
    FROM names
    WHERE names.queue IS NOT NULL
    AND names.number < %(queues)s::INTEGER
)
SELECT names.queue,
    CASE WHEN (number.due >= %(cap)s::INTEGER) THEN number.due ELSE (
    SELECT count(*) AS count_1
    FROM (
        SELECT 1
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.queue = names.queue
        LIMIT %(cap)s::INTEGER
    ) AS anon_1
) END AS queued,
    number.due,
    EXTRACT(epoch FROM now() - (
    SELECT min(greatest(front.run_at, timestamptz '0002-01-01 00:00:00+00')) AS min_1
    FROM unnest(CAST(%(priorities)s::VARCHAR AS SMALLINT[])) AS slot(priority)
    JOIN LATERAL (
        SELECT sa_jobqueue.job.run_at AS run_at
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.queue = names.queue
        AND sa_jobqueue.job.priority = slot.priority
        AND sa_jobqueue.job.run_at <= now()
        ORDER BY sa_jobqueue.job.run_at
        LIMIT 1
    ) AS front ON true
)) AS oldest_due_age
FROM names
JOIN LATERAL (
    SELECT count(*) AS due
    FROM (
        SELECT 1
        FROM unnest(CAST(%(priorities)s::VARCHAR AS SMALLINT[])) AS slot(priority)
        JOIN LATERAL (
            SELECT sa_jobqueue.job.run_at AS run_at
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.queue = names.queue
            AND sa_jobqueue.job.priority = slot.priority
            AND sa_jobqueue.job.run_at <= now()
            ORDER BY sa_jobqueue.job.run_at
            LIMIT %(cap)s::INTEGER
        ) AS due ON true
        LIMIT %(cap)s::INTEGER
    ) AS all_due
) AS number ON true
WHERE names.queue IS NOT NULL
ORDER BY names.queue
