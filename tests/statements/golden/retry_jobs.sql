WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status IN ('queued', 'completed', 'failed', 'cancelled')
    AND sa_jobqueue.job.id = %(id_1)s::BIGINT
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job
)
UPDATE sa_jobqueue.job
SET status='queued',
    run_at=least(sa_jobqueue.job.run_at, now()),
    lease_expires_at=NULL,
    finished_at=NULL,
    purge_at=NULL,
    cancel_requested_at=NULL,
    attempt=CASE WHEN (sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')) THEN 0 ELSE sa_jobqueue.job.attempt END,
    rescues=0,
    result=NULL
WHERE sa_jobqueue.job.id = any(array((
        SELECT locked.id
        FROM locked
    )
))
AND sa_jobqueue.job.status IN ('queued', 'completed', 'failed', 'cancelled')
RETURNING sa_jobqueue.job.id
