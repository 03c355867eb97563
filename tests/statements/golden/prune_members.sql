WITH chosen AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.workflow_id = %(of_workflow)s::BIGINT
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
    logs_gone AS (
    DELETE
    FROM sa_jobqueue.job_log
    WHERE sa_jobqueue.job_log.job_id = any(array((
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
