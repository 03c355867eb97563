WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status IN ('queued', 'blocked', 'completed', 'failed', 'cancelled')
    AND NOT jsonb_path_exists(sa_jobqueue.job.args, CAST('$.* ? (exists (@."$secret") || exists (@."$sensitive"))' AS jsonpath))
    AND sa_jobqueue.job.id = %(id_1)s::BIGINT
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job
)
UPDATE sa_jobqueue.job
SET run_at=CAST(%(edited_time)s::TIMESTAMP WITH TIME ZONE AS TIMESTAMP WITH TIME ZONE),
    priority=%(edited_priority)s::SMALLINT,
    queue=%(edited_queue)s::VARCHAR,
    args=CAST(%(edited_args)s::VARCHAR AS JSONB)
WHERE sa_jobqueue.job.id = any(array((
        SELECT locked.id
        FROM locked
    )
))
AND sa_jobqueue.job.status IN ('queued', 'blocked', 'completed', 'failed', 'cancelled')
AND NOT jsonb_path_exists(sa_jobqueue.job.args, CAST('$.* ? (exists (@."$secret") || exists (@."$sensitive"))' AS jsonpath))
RETURNING sa_jobqueue.job.id
