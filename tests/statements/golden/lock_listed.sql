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
