UPDATE sa_jobqueue.job
SET status='completed',
    lease_expires_at=NULL,
    finished_at=statement_timestamp(),
    purge_at=(statement_timestamp() + %(done_retain)s * interval '1 second'),
    result=NULL
WHERE sa_jobqueue.job.id = %(done_id)s::BIGINT
AND sa_jobqueue.job.claims = %(done_claims)s::INTEGER
AND (%(fence_worker)s::VARCHAR IS NULL OR sa_jobqueue.job.worker = %(fence_worker)s::VARCHAR)
AND sa_jobqueue.job.status = 'running'
RETURNING sa_jobqueue.job.id
