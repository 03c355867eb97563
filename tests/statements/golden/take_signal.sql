WITH held AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = %(of_job)s::BIGINT
    AND sa_jobqueue.job.claim_token = %(token)s::BIGINT
    AND sa_jobqueue.job.status = 'running'
    FOR NO KEY UPDATE
),
    taken AS (
    DELETE
    FROM sa_jobqueue.signal
    WHERE sa_jobqueue.signal.id = (
        SELECT sa_jobqueue.signal.id
        FROM sa_jobqueue.signal
        WHERE sa_jobqueue.signal.name = %(signal)s::VARCHAR
        AND sa_jobqueue.signal.expires_at > now()
        AND (EXISTS (
            SELECT held.id
            FROM held
        ))
        ORDER BY sa_jobqueue.signal.id
        LIMIT 1
        FOR UPDATE OF signal SKIP LOCKED
    )
    RETURNING sa_jobqueue.signal.payload
),
    "over" AS (
    DELETE
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.job_id = %(of_job)s::BIGINT
    AND sa_jobqueue.wait.step = %(step)s::VARCHAR
    AND (EXISTS (
        SELECT taken.payload
        FROM taken
    ))
)
INSERT INTO sa_jobqueue.step (job_id, claim_token, revision, kind, name, result)
SELECT held.id,
    %(token)s::BIGINT AS anon_1,
    1,
    'signal',
    %(step)s::VARCHAR AS anon_2,
    taken.payload
FROM held
JOIN taken ON true
RETURNING CAST(sa_jobqueue.step.result AS TEXT) AS result
