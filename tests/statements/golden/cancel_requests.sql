SELECT sa_jobqueue.job.id
FROM sa_jobqueue.job,
    unnest(CAST(%(lease_ids)s::VARCHAR AS BIGINT[]), CAST(%(lease_claims)s::VARCHAR AS INTEGER[])) AS held(id, claims)
WHERE sa_jobqueue.job.id = any(CAST(%(lease_ids)s::VARCHAR AS BIGINT[]))
AND sa_jobqueue.job.id = held.id
AND sa_jobqueue.job.claims = held.claims
AND (%(fence_worker)s::VARCHAR IS NULL OR sa_jobqueue.job.worker = %(fence_worker)s::VARCHAR)
AND sa_jobqueue.job.status = 'running'
AND sa_jobqueue.job.cancel_requested_at IS NOT NULL
