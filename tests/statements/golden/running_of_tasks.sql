SELECT held.queue,
    held.task,
    count(*) AS running
FROM (
    SELECT sa_jobqueue.job.queue AS queue,
        sa_jobqueue.job.task AS task
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'running'
    ORDER BY sa_jobqueue.job.id
    LIMIT %(cap)s::INTEGER
) AS held
GROUP BY held.queue,
    held.task
