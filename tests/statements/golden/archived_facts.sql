SELECT sa_jobqueue.archived_job.status,
    sa_jobqueue.archived_job.queue,
    sa_jobqueue.archived_job.task,
    sa_jobqueue.archived_job.attempt,
    sa_jobqueue.archived_job.max_attempts,
    sa_jobqueue.archived_job.finished_at,
    sa_jobqueue.archived_job.cancel_requested_at,
    sa_jobqueue.archived_job.duplicate_of,
    sa_jobqueue.archived_job.archived_at,
    sa_jobqueue.archived_job.errors -> -1 AS error
FROM sa_jobqueue.archived_job
WHERE sa_jobqueue.archived_job.id = %(id_1)s::BIGINT
ORDER BY sa_jobqueue.archived_job.finished_at DESC
LIMIT 1
