SELECT sa_jobqueue.job.id
FROM sa_jobqueue.job,
    unnest(%(lease_ids)s::BIGINT[], %(lease_claims)s::INTEGER[]) AS held(id, claims)
WHERE sa_jobqueue.job.id = any(%(lease_ids)s::BIGINT[])
AND sa_jobqueue.job.id = held.id
AND sa_jobqueue.job.claims = held.claims
AND sa_jobqueue.job.status = 'running'
AND sa_jobqueue.job.cancel_requested_at IS NOT NULL
