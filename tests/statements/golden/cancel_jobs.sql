WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status IN ('queued', 'blocked', 'running')
    AND sa_jobqueue.job.queue = %(queue_1)s::VARCHAR
    AND sa_jobqueue.job.status = 'queued'
    AND sa_jobqueue.job.run_at > now()
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job
)
UPDATE sa_jobqueue.job
SET status=CASE WHEN (sa_jobqueue.job.status != 'running') THEN 'cancelled' ELSE sa_jobqueue.job.status END,
    lease_expires_at=CASE WHEN (sa_jobqueue.job.status = 'running') THEN sa_jobqueue.job.lease_expires_at END,
    finished_at=CASE WHEN (sa_jobqueue.job.status != 'running') THEN statement_timestamp() END,
    purge_at=CASE WHEN (sa_jobqueue.job.status != 'running') THEN statement_timestamp() + 604800.0 * interval '1 second' END,
    cancel_requested_at=coalesce(sa_jobqueue.job.cancel_requested_at, statement_timestamp()),
    result=NULL
WHERE sa_jobqueue.job.id = any(array((
        SELECT locked.id
        FROM locked
    )
))
AND sa_jobqueue.job.status IN ('queued', 'blocked', 'running')
RETURNING sa_jobqueue.job.id
