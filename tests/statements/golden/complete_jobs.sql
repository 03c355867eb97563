WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = any(CAST(%(done_ids)s::VARCHAR AS BIGINT[]))
    AND sa_jobqueue.job.status = 'running'
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
    written AS (
    UPDATE sa_jobqueue.job
    SET status='completed',
        lease_expires_at=NULL,
        finished_at=statement_timestamp(),
        purge_at=(statement_timestamp() + done.retain * interval '1 second'),
        result=NULL
    FROM unnest(CAST(%(done_ids)s::VARCHAR AS BIGINT[]), CAST(%(done_claims)s::VARCHAR AS INTEGER[]), CAST(%(done_retain)s::VARCHAR AS FLOAT(53)[])) AS done(id, claims, retain)
    WHERE sa_jobqueue.job.id = any(array((
            SELECT locked.id
            FROM locked
        )
    ))
    AND sa_jobqueue.job.id = done.id
    AND sa_jobqueue.job.claims = done.claims
    AND (%(fence_worker)s::VARCHAR IS NULL OR sa_jobqueue.job.worker = %(fence_worker)s::VARCHAR)
    AND sa_jobqueue.job.status = 'running'
    RETURNING sa_jobqueue.job.id
)
SELECT array_agg(written.id) AS array_agg_1
FROM written
