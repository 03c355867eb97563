WITH "over" AS MATERIALIZED (
    SELECT sa_jobqueue.workflow.id AS id
    FROM sa_jobqueue.workflow
    WHERE sa_jobqueue.workflow.id = %(of_workflow)s::BIGINT
    AND sa_jobqueue.workflow.purge_at <= now()
    AND NOT (EXISTS (
        SELECT sa_jobqueue.workflow_event.id
        FROM sa_jobqueue.workflow_event
        WHERE sa_jobqueue.workflow_event.workflow_id = sa_jobqueue.workflow.id
    ))
    FOR NO KEY UPDATE SKIP LOCKED
),
    chosen AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.workflow_id = any(array((
            SELECT "over".id
            FROM "over"
        )
    ))
    AND sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')
    AND sa_jobqueue.job.task != ALL (array((
            SELECT sa_jobqueue.archived_task.name
            FROM sa_jobqueue.archived_task
        )
    ))
    ORDER BY sa_jobqueue.job.id
    LIMIT %(page)s::INTEGER
    FOR UPDATE
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
),
    edges AS (
    DELETE
    FROM sa_jobqueue.workflow_dependency
    WHERE sa_jobqueue.workflow_dependency.child_id = any(array((
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
