SELECT last.queue,
    count(*) AS number
FROM (
    SELECT sa_jobqueue.job.queue AS queue
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'failed'
    ORDER BY sa_jobqueue.job.id DESC
    LIMIT %(cap)s::INTEGER
) AS last
GROUP BY last.queue
ORDER BY last.queue
