WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = any(CAST(%(lease_ids)s::VARCHAR AS BIGINT[]))
    AND sa_jobqueue.job.status = 'running'
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
    renewed AS (
    UPDATE sa_jobqueue.job
    SET lease_expires_at=(now() + %(lease_seconds)s * interval '1 second')
    FROM unnest(CAST(%(lease_ids)s::VARCHAR AS BIGINT[]), CAST(%(lease_tokens)s::VARCHAR AS BIGINT[])) AS held(id, token)
    WHERE sa_jobqueue.job.id = any(array((
            SELECT locked.id
            FROM locked
        )
    ))
    AND sa_jobqueue.job.id = held.id
    AND sa_jobqueue.job.claim_token = held.token
    AND sa_jobqueue.job.status = 'running'
    RETURNING sa_jobqueue.job.id,
        sa_jobqueue.job.claim_token,
        sa_jobqueue.job.cancel_requested_at
)
SELECT held.id,
    held.token,
    CASE WHEN (renewed.id IS NOT NULL) THEN 'applied' WHEN (
    SELECT true
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = held.id AND sa_jobqueue.job.claim_token = held.token AND sa_jobqueue.job.status = 'running'
) THEN 'locked' ELSE 'lost' END AS answer,
    renewed.cancel_requested_at IS NOT NULL AS cancel_requested
FROM unnest(CAST(%(lease_ids)s::VARCHAR AS BIGINT[]), CAST(%(lease_tokens)s::VARCHAR AS BIGINT[])) AS held(id, token)
LEFT OUTER JOIN renewed ON renewed.id = held.id
AND renewed.claim_token = held.token
