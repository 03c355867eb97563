WITH matched AS (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status IN ('queued', 'blocked', 'completed', 'failed', 'cancelled')
    AND sa_jobqueue.job.id = %(id_1)s::BIGINT
),
    locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status IN ('queued', 'blocked', 'completed', 'failed', 'cancelled')
    AND sa_jobqueue.job.id = %(id_1)s::BIGINT
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
    changed AS (
    UPDATE sa_jobqueue.job
    SET run_at=(now() + %(delay_seconds)s * interval '1 second')
    WHERE sa_jobqueue.job.id = any(array((
            SELECT locked.id
            FROM locked
        )
    ))
    AND sa_jobqueue.job.status IN ('queued', 'blocked', 'completed', 'failed', 'cancelled')
    RETURNING sa_jobqueue.job.id
)
SELECT matched.id,
    changed.id IS NOT NULL AS changed
FROM matched
LEFT OUTER JOIN changed ON changed.id = matched.id
ORDER BY matched.id
