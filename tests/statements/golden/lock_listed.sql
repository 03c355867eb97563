WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = any(CAST(%(listed_ids)s::VARCHAR AS BIGINT[]))
    AND sa_jobqueue.job.status = 'queued'
    AND sa_jobqueue.job.run_at <= now()
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
SELECT locked.id
FROM locked
WHERE CASE WHEN ((
        SELECT bit_xor(sa_jobqueue.job_limit.version) AS bit_xor_1
        FROM sa_jobqueue.job_limit
    ) IS NOT DISTINCT
    FROM %(known_limits)s::BIGINT AND NOT (EXISTS (
        SELECT true
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = any(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AND sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
    )) AND NOT (EXISTS (
        SELECT true
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.queue = any(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AND sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.run_at <= now()
    ))
) THEN true ELSE sa_jobqueue.limits_changed((
        SELECT bit_xor(sa_jobqueue.job_limit.version) AS bit_xor_1
        FROM sa_jobqueue.job_limit
    )
) END
