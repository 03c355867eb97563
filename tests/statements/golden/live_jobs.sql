SELECT wanted.id
FROM unnest(CAST(%(schedule_ids)s::VARCHAR AS BIGINT[])) AS wanted(id)
WHERE (
    SELECT true
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.schedule_id = wanted.id
    AND sa_jobqueue.job.finished_at IS NULL
    LIMIT 1
)
