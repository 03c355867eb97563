SELECT held.queue,
    held.worker,
    count(*) AS running,
    count(*) FILTER (WHERE held.expired) AS expired
FROM (
    SELECT sa_jobqueue.job.queue AS queue,
        sa_jobqueue.job.worker AS worker,
        sa_jobqueue.job.lease_expires_at IS NULL
    OR sa_jobqueue.job.lease_expires_at <= now() AS expired
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'running'
    LIMIT %(cap)s::INTEGER
) AS held
GROUP BY held.queue,
    held.worker
