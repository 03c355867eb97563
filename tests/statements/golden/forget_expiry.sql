WITH "over" AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id,
        sa_jobqueue.job.uniqueness ->> 'key' AS key,
        sa_jobqueue.job.workflow_id AS workflow_id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status IN ('queued', 'blocked')
    AND now() >= least(sa_jobqueue.job.expires_at, sa_jobqueue.job.deadline_at)
    AND sa_jobqueue.job.expires_at <= now()
    AND (sa_jobqueue.job.attempt > 0 OR sa_jobqueue.job.rescues > 0)
    ORDER BY least(sa_jobqueue.job.expires_at, sa_jobqueue.job.deadline_at)
    LIMIT %(page)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE sa_jobqueue.job
SET expires_at=NULL
WHERE sa_jobqueue.job.id = any(array((
        SELECT "over".id
        FROM "over"
    )
))
AND sa_jobqueue.job.status IN ('queued', 'blocked')
RETURNING sa_jobqueue.job.id
