WITH chosen AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.queue = %(queue_1)s::VARCHAR
    AND sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')
    ORDER BY sa_jobqueue.job.id
    LIMIT %(page)s::INTEGER
    FOR UPDATE SKIP LOCKED
)
DELETE
FROM sa_jobqueue.job
WHERE sa_jobqueue.job.id = any(array((
        SELECT chosen.id
        FROM chosen
    )
))
RETURNING sa_jobqueue.job.id
