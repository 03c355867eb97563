SELECT count(*) AS count_1
FROM (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'failed'
    LIMIT %(cap)s::INTEGER
) AS failed
