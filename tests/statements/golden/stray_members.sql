SELECT waiting.id
FROM (
    SELECT sa_jobqueue.job.id AS id,
        sa_jobqueue.job.blocked_by AS blocked_by,
        sa_jobqueue.job.workflow_id AS workflow_id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'blocked'
    AND sa_jobqueue.job.blocked_by > 0
    ORDER BY sa_jobqueue.job.blocked_by
    LIMIT %(sample)s::INTEGER
) AS waiting
WHERE NOT (EXISTS (
    SELECT parent.id
    FROM sa_jobqueue.job AS parent
    WHERE parent.id = waiting.blocked_by
    AND (parent.status NOT IN ('completed', 'failed', 'cancelled'))
    LIMIT ALL OFFSET 0
))
AND NOT (EXISTS (
    SELECT sa_jobqueue.workflow_event.id
    FROM sa_jobqueue.workflow_event
    WHERE sa_jobqueue.workflow_event.workflow_id = waiting.workflow_id
    AND sa_jobqueue.workflow_event.job_id = waiting.blocked_by
    LIMIT ALL OFFSET 0
))
ORDER BY waiting.id
