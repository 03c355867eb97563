SELECT key.key,
    key.job_id,
    count(*) OVER () AS total
FROM (
    SELECT sa_jobqueue.unique_key.key AS key,
        sa_jobqueue.unique_key.job_id AS job_id
    FROM sa_jobqueue.unique_key
    WHERE sa_jobqueue.unique_key.expires_at IS NULL
    ORDER BY sa_jobqueue.unique_key.key
    LIMIT %(sample)s::INTEGER
) AS key
WHERE NOT (EXISTS (
    SELECT sa_jobqueue.job.id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = key.job_id
    AND (sa_jobqueue.job.uniqueness ->> 'key') = key.key
    AND (sa_jobqueue.job.status NOT IN ('completed', 'failed', 'cancelled'))
    LIMIT ALL OFFSET 0
))
ORDER BY key.key
LIMIT %(param_1)s::INTEGER
