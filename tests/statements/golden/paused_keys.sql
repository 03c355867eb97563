SELECT first.owner,
    first.name,
    first.key,
    date_part('epoch', now() - first.paused_at) AS paused,
    first.pause_reason
FROM (
    SELECT sa_jobqueue.job_key.owner AS owner,
        sa_jobqueue.job_key.name AS name,
        sa_jobqueue.job_key.key AS key,
        sa_jobqueue.job_key.paused_at AS paused_at,
        sa_jobqueue.job_key.pause_reason AS pause_reason
    FROM sa_jobqueue.job_key
    ORDER BY sa_jobqueue.job_key.owner,
        sa_jobqueue.job_key.name,
        sa_jobqueue.job_key.key
    LIMIT %(cap)s::INTEGER
) AS first
WHERE first.paused_at IS NOT NULL
ORDER BY first.owner,
    first.name,
    first.key
LIMIT %(most)s::INTEGER
