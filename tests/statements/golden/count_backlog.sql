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
        names.number + 1 AS anon_4
    FROM names
    WHERE names.queue IS NOT NULL
    AND names.number < %(queues)s::INTEGER
),
    ready AS MATERIALIZED (
    SELECT names.queue AS queue,
        found.due AS due,
        found.oldest AS oldest
    FROM names
    JOIN LATERAL (
        SELECT count(*) AS due,
            min(least(greatest(page.run_at, timestamptz '0002-01-01 00:00:00+00'), now())) AS oldest
        FROM (
            SELECT sa_jobqueue.job.run_at AS run_at
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
            AND sa_jobqueue.job.queue = names.queue
            LIMIT %(cap)s::INTEGER
        ) AS page
    ) AS found ON true
    WHERE names.queue IS NOT NULL
),
    turn(queue, key, turn, run_at, number) AS (
    SELECT ready.queue AS queue,
        front.key AS key,
        front.turn AS turn,
        front.run_at AS run_at,
        1 AS number
    FROM ready
    JOIN LATERAL (
        SELECT sa_jobqueue.job.concurrency_key AS key,
            -sa_jobqueue.job.priority AS turn,
            sa_jobqueue.job.run_at AS run_at
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
        AND sa_jobqueue.job.status = 'queued'
        AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        AND sa_jobqueue.job.queue = ready.queue
        ORDER BY sa_jobqueue.job.concurrency_key,
            -sa_jobqueue.job.priority,
            sa_jobqueue.job.run_at
        LIMIT 1
    ) AS front ON true
    WHERE ready.due >= %(cap)s::INTEGER
    UNION ALL
    SELECT turn.queue AS queue,
        front.key AS key,
        front.turn AS turn,
        front.run_at AS run_at,
        turn.number + 1 AS anon_5
    FROM turn
    JOIN LATERAL (
        SELECT sa_jobqueue.job.concurrency_key AS key,
            -sa_jobqueue.job.priority AS turn,
            sa_jobqueue.job.run_at AS run_at
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
INSERT INTO sa_jobqueue.backlog (at, due, running, oldest, more, queue)
SELECT date_trunc('minute', now() + -30 * interval '1 second') AS date_trunc_1,
    coalesce(waits.due, 0) AS coalesce_1,
    coalesce(runs.number, 0) AS coalesce_2,
    waits.oldest_due_age,
    coalesce(waits.due, 0) >= %(cap)s::INTEGER AS anon_1,
    coalesce(waits.queue, runs.queue) AS coalesce_3
FROM (
    SELECT names.queue AS queue,
        CASE WHEN (keyless.due + ready.due + later.due >= %(cap)s::INTEGER) THEN %(cap)s::INTEGER ELSE least((
            SELECT count(*) AS count_1
            FROM (
                SELECT 1
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.concurrency_key IS NULL AND sa_jobqueue.job.queue = names.queue
                LIMIT %(cap)s::INTEGER
            ) AS anon_2
        ) + ready.due + (
            SELECT count(*) AS count_2
            FROM (
                SELECT 1
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.queue = names.queue
                LIMIT %(cap)s::INTEGER
            ) AS anon_3
        ),
            %(cap)s::INTEGER
    ) END AS queued,
        least(keyless.due + ready.due + later.due, %(cap)s::INTEGER) AS due,
        EXTRACT(epoch FROM now() - least((
            SELECT min(least(greatest(front.run_at, timestamptz '0002-01-01 00:00:00+00'), now())) AS min_1
            FROM unnest(CAST(%(priorities)s::VARCHAR AS SMALLINT[])) AS slot(priority)
            JOIN LATERAL (
                SELECT sa_jobqueue.job.run_at AS run_at
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.status = 'queued'
                AND sa_jobqueue.job.concurrency_key IS NULL
                AND sa_jobqueue.job.queue = names.queue
                AND sa_jobqueue.job.priority = slot.priority
                AND sa_jobqueue.job.run_at <= now()
                ORDER BY sa_jobqueue.job.run_at
                LIMIT 1
            ) AS front ON true
        ),
            ready.oldest,
            turns.oldest,
            later.oldest
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
                AND sa_jobqueue.job.concurrency_key IS NULL
                AND sa_jobqueue.job.queue = names.queue
                AND sa_jobqueue.job.priority = slot.priority
                AND sa_jobqueue.job.run_at <= now()
                ORDER BY sa_jobqueue.job.run_at
                LIMIT %(cap)s::INTEGER
            ) AS due ON true
            LIMIT %(cap)s::INTEGER
        ) AS all_due
    ) AS keyless ON true
    JOIN LATERAL (
        SELECT count(*) AS due,
            min(least(greatest(page.run_at, timestamptz '0002-01-01 00:00:00+00'), now())) AS oldest
        FROM (
            SELECT sa_jobqueue.job.run_at AS run_at
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.concurrency_key IS NOT NULL
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
            AND sa_jobqueue.job.queue = names.queue
            AND sa_jobqueue.job.run_at <= now()
            ORDER BY sa_jobqueue.job.run_at
            LIMIT %(cap)s::INTEGER
        ) AS page
    ) AS later ON true
    JOIN ready ON ready.queue = names.queue
    LEFT OUTER JOIN (
        SELECT some_turns.queue AS queue,
            min(least(greatest(some_turns.run_at, timestamptz '0002-01-01 00:00:00+00'), now())) AS oldest
        FROM (
            SELECT turn.queue AS queue,
                turn.key AS key,
                turn.turn AS turn,
                turn.run_at AS run_at,
                turn.number AS number
            FROM turn
            LIMIT %(turns)s::INTEGER
        ) AS some_turns
        GROUP BY some_turns.queue
    ) AS turns ON turns.queue = names.queue
    ORDER BY names.queue
) AS waits FULL OUTER JOIN (
    SELECT last.queue AS queue,
        count(*) AS number
    FROM (
        SELECT sa_jobqueue.job.queue AS queue
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.status = 'running'
        ORDER BY sa_jobqueue.job.id DESC
        LIMIT %(cap)s::INTEGER
    ) AS last
    GROUP BY last.queue
    ORDER BY last.queue
) AS runs ON runs.queue = waits.queue
