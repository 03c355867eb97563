UPDATE sa_jobqueue.job_limit
SET running=%(running)s::INTEGER,
    declared=%(declared_values)s::JSONB,
    declared_at=now(),
    definitions=%(definitions)s::TEXT[]
WHERE sa_jobqueue.job_limit.owner = %(of_owner)s::VARCHAR
AND sa_jobqueue.job_limit.name = %(of_name)s::VARCHAR
