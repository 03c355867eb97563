WITH chosen AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.purge_at <= now()
    AND sa_jobqueue.job.purge_at >= to_timestamp(%(after)s)
    AND sa_jobqueue.job.task != ALL (array((
            SELECT sa_jobqueue.archived_task.name
            FROM sa_jobqueue.archived_task
        )
    ))
    AND sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')
    ORDER BY sa_jobqueue.job.purge_at
    LIMIT %(page)s::INTEGER
    FOR UPDATE SKIP LOCKED
),
    progress_gone AS (
    DELETE
    FROM sa_jobqueue.job_progress
    WHERE sa_jobqueue.job_progress.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
),
    log_gone AS (
    DELETE
    FROM sa_jobqueue.job_log
    WHERE sa_jobqueue.job_log.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
),
    step_gone AS (
    DELETE
    FROM sa_jobqueue.step
    WHERE sa_jobqueue.step.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
),
    wait_gone AS (
    DELETE
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
)
DELETE
FROM sa_jobqueue.job
WHERE sa_jobqueue.job.id = any(array((
        SELECT chosen.id
        FROM chosen
    )
))
RETURNING sa_jobqueue.job.id,
    date_part('epoch', sa_jobqueue.job.purge_at) AS purge_at
