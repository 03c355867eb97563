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
    FROM unnest(CAST(%(done_ids)s::VARCHAR AS BIGINT[]), CAST(%(done_tokens)s::VARCHAR AS BIGINT[]), CAST(%(done_retain)s::VARCHAR AS FLOAT(53)[])) AS done(id, token, retain)
    WHERE sa_jobqueue.job.id = any(array((
            SELECT locked.id
            FROM locked
        )
    ))
    AND sa_jobqueue.job.id = done.id
    AND sa_jobqueue.job.claim_token = done.token
    AND sa_jobqueue.job.status = 'running'
    RETURNING sa_jobqueue.job.id,
        sa_jobqueue.job.workflow_id
),
    events AS (INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed) SELECT written.workflow_id AS workflow_id, written.id AS id, true FROM written WHERE written.workflow_id IS NOT NULL)
SELECT CASE WHEN sa_jobqueue.any_awaited() THEN sa_jobqueue.tell_ended(array_agg(written.id)) ELSE array_agg(written.id) END AS anon_1
FROM written
