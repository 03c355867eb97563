WITH RECURSIVE queues(queue, number) AS (
    SELECT (
        SELECT job_3.queue
        FROM sa_jobqueue.job AS job_3
        WHERE job_3.status = 'queued'
        ORDER BY job_3.queue
        LIMIT 1
    ) AS queue,
        1 AS number
    UNION ALL
    SELECT (
        SELECT job_4.queue
        FROM sa_jobqueue.job AS job_4
        WHERE job_4.status = 'queued'
        AND job_4.queue > queues.queue
        ORDER BY job_4.queue
        LIMIT 1
    ) AS anon_5,
        queues.number + 1 AS anon_6
    FROM queues
    WHERE queues.queue IS NOT NULL
    AND queues.number < %(queues)s::INTEGER
)
SELECT queues.queue,
    CASE WHEN (counted.due >= %(cap)s::INTEGER) THEN counted.due ELSE (
    SELECT count(*) AS count_1
    FROM (
        SELECT 1
        FROM sa_jobqueue.job AS job_1
        WHERE job_1.status = 'queued' AND job_1.queue = queues.queue
        LIMIT %(cap)s::INTEGER
    ) AS anon_1
) END AS queued,
    counted.due,
    (
    SELECT EXTRACT(epoch FROM now() - greatest(min(anon_3.run_at), timestamptz '0002-01-01 00:00:00+00')) AS anon_2
    FROM generate_series(9, 0, -1) AS anon_4(priority)
    JOIN LATERAL (
        SELECT job_2.run_at AS run_at
        FROM sa_jobqueue.job AS job_2
        WHERE job_2.status = 'queued'
        AND job_2.queue = queues.queue
        AND job_2.priority = anon_4.priority
        AND job_2.run_at <= now()
        ORDER BY job_2.run_at
        LIMIT 1
    ) AS anon_3 ON true HAVING min(anon_3.run_at) IS NOT NULL
) AS oldest_due_age
FROM queues
JOIN LATERAL (
    SELECT count(*) AS due
    FROM (
        SELECT 1
        FROM generate_series(9, 0, -1) AS anon_8(priority)
        JOIN LATERAL (
            SELECT 1 AS one
            FROM sa_jobqueue.job AS job_5
            WHERE job_5.status = 'queued'
            AND job_5.queue = queues.queue
            AND job_5.priority = anon_8.priority
            AND job_5.run_at <= now()
            LIMIT %(cap)s::INTEGER
        ) AS anon_9 ON true
        LIMIT %(cap)s::INTEGER
    ) AS anon_7
) AS counted ON true
WHERE queues.queue IS NOT NULL
ORDER BY queues.queue
