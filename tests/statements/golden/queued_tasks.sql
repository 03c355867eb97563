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
    ) AS anon_1,
        names.number + 1 AS anon_2
    FROM names
    WHERE names.queue IS NOT NULL
    AND names.number < %(queues)s::INTEGER
)
SELECT "both".queue,
    "both".task,
    count(*) AS jobs
FROM (
    SELECT names.queue AS queue,
        "some".task AS task
    FROM names
    JOIN unnest(CAST(%(priorities)s::VARCHAR AS SMALLINT[])) AS slot(priority) ON true
    JOIN LATERAL (
        SELECT sa_jobqueue.job.task AS task
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.queue = names.queue
        AND sa_jobqueue.job.priority = slot.priority
        AND sa_jobqueue.job.run_at <= now()
        ORDER BY sa_jobqueue.job.run_at
        LIMIT %(sample)s::INTEGER
    ) AS "some" ON true
    UNION ALL
    SELECT names.queue AS queue,
        "some".task AS task
    FROM names
    JOIN unnest(CAST(%(priorities)s::VARCHAR AS SMALLINT[])) AS slot(priority) ON true
    JOIN LATERAL (
        SELECT sa_jobqueue.job.task AS task
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.queue = names.queue
        AND sa_jobqueue.job.priority = slot.priority
        AND sa_jobqueue.job.run_at > now()
        ORDER BY sa_jobqueue.job.run_at
        LIMIT %(sample)s::INTEGER
    ) AS "some" ON true
) AS "both"
GROUP BY "both".queue,
    "both".task
ORDER BY "both".queue,
    "both".task
