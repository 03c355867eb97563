SELECT sa_jobqueue.job.id
FROM sa_jobqueue.job,
    unnest(CAST(%(lease_ids)s::VARCHAR AS BIGINT[]), CAST(%(lease_tokens)s::VARCHAR AS BIGINT[])) AS held(id, token)
WHERE sa_jobqueue.job.id = any(CAST(%(lease_ids)s::VARCHAR AS BIGINT[]))
AND sa_jobqueue.job.id = held.id
AND sa_jobqueue.job.claim_token = held.token
AND sa_jobqueue.job.status = 'running'
AND sa_jobqueue.job.cancel_requested_at IS NOT NULL
