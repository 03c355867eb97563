WITH held AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = %(of_job)s::BIGINT
    AND sa_jobqueue.job.claim_token = %(token)s::BIGINT
    AND sa_jobqueue.job.status = 'running'
    FOR NO KEY UPDATE
),
    "over" AS (
    DELETE
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.job_id = %(of_job)s::BIGINT
    AND sa_jobqueue.wait.step = %(step)s::VARCHAR
    AND (EXISTS (
        SELECT held.id
        FROM held
    ))
)
INSERT INTO sa_jobqueue.step (job_id, claim_token, revision, kind, name, digest, took, result)
SELECT held.id,
    %(token)s::BIGINT AS anon_1,
    %(revision)s::INTEGER AS anon_2,
    %(kind)s::VARCHAR AS anon_3,
    %(step)s::VARCHAR AS anon_4,
    %(digest)s::VARCHAR AS anon_5,
    %(took)s AS anon_6,
    CAST(%(result)s::VARCHAR AS JSONB) AS anon_7
FROM held ON CONFLICT (job_id, name) DO
UPDATE
SET claim_token = excluded.claim_token,
    ended_at = clock_timestamp(),
    took = excluded.took,
    revision = excluded.revision,
    kind = excluded.kind,
    name = excluded.name,
    digest = excluded.digest,
    result = excluded.result
RETURNING sa_jobqueue.step.job_id
