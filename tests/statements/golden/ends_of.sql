SELECT sa_jobqueue.job.id,
    sa_jobqueue.job.task,
    sa_jobqueue.job.status,
    CASE WHEN (sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')) THEN sa_jobqueue.job.result END AS result,
    CASE WHEN (sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')) THEN sa_jobqueue.job.errors -> -1 END AS error
FROM sa_jobqueue.job,
    unnest(CAST(%(ended_ids)s::VARCHAR AS BIGINT[])) AS asked(id)
WHERE sa_jobqueue.job.id = asked.id
