UPDATE sa_jobqueue.step
SET unused_by=%(token)s::BIGINT
WHERE sa_jobqueue.step.job_id = %(of_job)s::BIGINT
AND sa_jobqueue.step.name = any(CAST(%(names)s::VARCHAR AS TEXT[]))
