SELECT sa_jobqueue.archived_job.id,
    sa_jobqueue.archived_job.task,
    sa_jobqueue.archived_job.status,
    sa_jobqueue.archived_job.result,
    sa_jobqueue.archived_job.errors -> -1 AS error
FROM sa_jobqueue.archived_job,
    unnest(CAST(%(archived_ids)s::VARCHAR AS BIGINT[])) AS asked(id)
WHERE sa_jobqueue.archived_job.id = asked.id
