SELECT asked.name,
    least((
        SELECT count(*) AS count_1
        FROM (
            SELECT 1
            FROM unnest(CAST(%(priorities)s::VARCHAR AS SMALLINT[])) AS slot(priority)
            JOIN LATERAL (
                SELECT 1 AS one
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'queued'
                AND sa_jobqueue.job.concurrency_key IS NULL
                AND sa_jobqueue.job.queue = asked.name
                AND sa_jobqueue.job.priority = slot.priority
                AND sa_jobqueue.job.run_at <= now()
                ORDER BY sa_jobqueue.job.run_at
                LIMIT %(cap)s::INTEGER
            ) AS page ON true
            LIMIT %(cap)s::INTEGER
        ) AS anon_1
    ) + (
        SELECT count(*) AS count_2
        FROM (
            SELECT 1
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
            AND sa_jobqueue.job.queue = asked.name
            LIMIT %(cap)s::INTEGER
        ) AS anon_2
    ) + (
        SELECT count(*) AS count_3
        FROM (
            SELECT 1
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
            AND sa_jobqueue.job.queue = asked.name
            AND sa_jobqueue.job.run_at <= now()
            ORDER BY sa_jobqueue.job.run_at
            LIMIT %(cap)s::INTEGER
        ) AS anon_3
    ),
        %(cap)s::INTEGER
) AS due
FROM unnest(CAST(%(paused_queues)s::VARCHAR AS TEXT[])) AS asked(name)
