DELETE
FROM sa_jobqueue.awaited
WHERE sa_jobqueue.awaited.job_id = any(CAST(%(awaited_ids)s::VARCHAR AS BIGINT[]))
AND sa_jobqueue.awaited.waiter = %(of_waiter)s::UUID
