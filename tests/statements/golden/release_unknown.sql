WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'running'
    AND sa_jobqueue.job.worker = %(of_worker)s::VARCHAR
    AND NOT (EXISTS (
        SELECT kept.id
        FROM unnest(CAST(%(kept_ids)s::VARCHAR AS BIGINT[]), CAST(%(kept_tokens)s::VARCHAR AS BIGINT[])) AS kept(id, token)
        WHERE sa_jobqueue.job.id = kept.id
        AND sa_jobqueue.job.claim_token = kept.token
    ))
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job
)
UPDATE sa_jobqueue.job
SET status=CASE WHEN (sa_jobqueue.job.cancel_requested_at IS NOT NULL) THEN 'cancelled' ELSE 'queued' END,
    run_at=CASE WHEN (sa_jobqueue.job.cancel_requested_at IS NOT NULL) THEN sa_jobqueue.job.run_at ELSE now() + %(delay_seconds)s * interval '1 second' END,
    lease_expires_at=NULL,
    finished_at=CASE WHEN (sa_jobqueue.job.cancel_requested_at IS NOT NULL) THEN statement_timestamp() END,
    purge_at=CASE WHEN (sa_jobqueue.job.cancel_requested_at IS NOT NULL) THEN statement_timestamp() + 604800.0 * interval '1 second' END,
    attempt=greatest(sa_jobqueue.job.attempt - 1, 0),
    result=NULL
WHERE sa_jobqueue.job.id = any(array((
        SELECT locked.id
        FROM locked
    )
))
AND sa_jobqueue.job.status = 'running'
RETURNING sa_jobqueue.job.id
