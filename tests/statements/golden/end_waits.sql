DELETE
FROM sa_jobqueue.awaited
USING unnest(CAST(%(awaited_ids)s::VARCHAR AS BIGINT[])) AS ended(id)
WHERE sa_jobqueue.awaited.job_id = ended.id
AND sa_jobqueue.awaited.waiter = %(of_waiter)s::UUID
