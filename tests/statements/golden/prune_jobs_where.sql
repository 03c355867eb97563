WITH chosen AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.queue = %(queue_1)s::VARCHAR
    AND NOT (EXISTS (
        SELECT sa_jobqueue.workflow.id
        FROM sa_jobqueue.workflow
        WHERE sa_jobqueue.workflow.id = sa_jobqueue.job.workflow_id
        AND sa_jobqueue.workflow.finished_at IS NULL
    ))
    AND sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')
    ORDER BY sa_jobqueue.job.id
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
RETURNING sa_jobqueue.job.id
