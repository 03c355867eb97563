WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = any(CAST(%(done_ids)s::VARCHAR AS BIGINT[]))
    AND sa_jobqueue.job.status = 'running'
    ORDER BY sa_jobqueue.job.id
    FOR UPDATE OF job SKIP LOCKED
),
    written AS (
    DELETE
    FROM sa_jobqueue.job
    USING unnest(CAST(%(done_ids)s::VARCHAR AS BIGINT[]), CAST(%(done_tokens)s::VARCHAR AS BIGINT[])) AS done(id, token)
    WHERE sa_jobqueue.job.id = any(array((
            SELECT locked.id
            FROM locked
        )
    ))
    AND sa_jobqueue.job.id = done.id
    AND sa_jobqueue.job.claim_token = done.token
    AND sa_jobqueue.job.status = 'running'
    RETURNING sa_jobqueue.job.id
)
SELECT CASE WHEN sa_jobqueue.any_awaited() THEN sa_jobqueue.tell_ended(array_agg(written.id)) ELSE array_agg(written.id) END AS anon_1
FROM written
