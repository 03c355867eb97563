SELECT sa_jobqueue.job.tick_at
FROM sa_jobqueue.job
WHERE sa_jobqueue.job.schedule_id = %(of_schedule)s::BIGINT
AND sa_jobqueue.job.tick_at BETWEEN %(param_1)s::TIMESTAMP
WITH TIME ZONE
AND %(param_2)s::TIMESTAMP
WITH TIME ZONE
