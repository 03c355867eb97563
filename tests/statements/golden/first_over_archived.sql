SELECT sa_jobqueue.job.id
FROM sa_jobqueue.job
WHERE sa_jobqueue.job.purge_at <= now()
AND sa_jobqueue.job.purge_at >= to_timestamp(%(after)s)
AND sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')
ORDER BY sa_jobqueue.job.purge_at
LIMIT %(param_1)s::INTEGER
FOR UPDATE SKIP LOCKED
