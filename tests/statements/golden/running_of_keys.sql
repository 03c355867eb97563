WITH held AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id,
        sa_jobqueue.job.queue AS queue,
        sa_jobqueue.job.task AS task,
        sa_jobqueue.job.concurrency_key AS key,
        sa_jobqueue.job.lease_expires_at IS NULL
    OR sa_jobqueue.job.lease_expires_at <= now() AS expired,
        coalesce(date_part('epoch', now() - sa_jobqueue.job.claimed_at), 0.0) AS seconds
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'running'
    ORDER BY sa_jobqueue.job.id
    LIMIT %(cap)s::INTEGER
)
SELECT held.queue,
    held.task,
    CASE WHEN (held.key >= chr(2)) THEN held.key END AS key,
    count(*) AS running
FROM held
GROUP BY held.queue,
    held.task,
    CASE WHEN (held.key >= chr(2)) THEN held.key END
