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
),
    turn(queue, key, turn, task, number) AS (
    SELECT names.queue AS queue,
        front.key AS key,
        front.turn AS turn,
        front.task AS task,
        1 AS number
    FROM names
    JOIN LATERAL (
        SELECT sa_jobqueue.job.concurrency_key AS key,
            -sa_jobqueue.job.priority AS turn,
            sa_jobqueue.job.task AS task
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        AND sa_jobqueue.job.queue = names.queue
        ORDER BY sa_jobqueue.job.concurrency_key,
            -sa_jobqueue.job.priority,
            sa_jobqueue.job.run_at
        LIMIT 1
    ) AS front ON true
    UNION ALL
    SELECT turn.queue AS queue,
        front.key AS key,
        front.turn AS turn,
        front.task AS task,
        turn.number + 1 AS anon_2
    FROM turn
    JOIN LATERAL (
        SELECT sa_jobqueue.job.concurrency_key AS key,
            -sa_jobqueue.job.priority AS turn,
            sa_jobqueue.job.task AS task
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        AND sa_jobqueue.job.queue = turn.queue
        AND (sa_jobqueue.job.concurrency_key, -sa_jobqueue.job.priority) > (turn.key, turn.turn)
        ORDER BY sa_jobqueue.job.concurrency_key,
            -sa_jobqueue.job.priority,
            sa_jobqueue.job.run_at
        LIMIT 1
    ) AS front ON true
    WHERE turn.number < %(turns)s::INTEGER
)
SELECT found.queue,
    found.task,
    count(*) AS jobs
FROM (
    SELECT names.queue AS queue,
        "some".task AS task
    FROM names
    JOIN unnest(CAST(%(priorities)s::VARCHAR AS SMALLINT[])) AS slot(priority) ON true
    JOIN LATERAL (
        SELECT sa_jobqueue.job.task AS task
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = names.queue
        AND sa_jobqueue.job.run_at <= now()
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.concurrency_key IS NULL
        AND sa_jobqueue.job.priority = slot.priority
        ORDER BY sa_jobqueue.job.run_at
        LIMIT %(sample)s::INTEGER
    ) AS "some" ON true
    UNION ALL
    SELECT names.queue AS queue,
        later.task AS task
    FROM names
    JOIN LATERAL (
        SELECT sa_jobqueue.job.task AS task
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = names.queue
        AND sa_jobqueue.job.run_at <= now()
        AND sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        ORDER BY sa_jobqueue.job.run_at
        LIMIT %(sample)s::INTEGER
    ) AS later ON true
    UNION ALL
    SELECT names.queue AS queue,
        "some".task AS task
    FROM names
    JOIN unnest(CAST(%(priorities)s::VARCHAR AS SMALLINT[])) AS slot(priority) ON true
    JOIN LATERAL (
        SELECT sa_jobqueue.job.task AS task
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = names.queue
        AND sa_jobqueue.job.run_at > now()
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.concurrency_key IS NULL
        AND sa_jobqueue.job.priority = slot.priority
        ORDER BY sa_jobqueue.job.run_at
        LIMIT %(sample)s::INTEGER
    ) AS "some" ON true
    UNION ALL
    SELECT names.queue AS queue,
        later.task AS task
    FROM names
    JOIN LATERAL (
        SELECT sa_jobqueue.job.task AS task
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = names.queue
        AND sa_jobqueue.job.run_at > now()
        AND sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        ORDER BY sa_jobqueue.job.run_at
        LIMIT %(sample)s::INTEGER
    ) AS later ON true
    UNION ALL
    SELECT turn.queue AS queue,
        turn.task AS task
    FROM turn
) AS found
GROUP BY found.queue,
    found.task
ORDER BY found.queue,
    found.task
