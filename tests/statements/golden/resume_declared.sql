UPDATE sa_jobqueue.schedule
SET paused_at=NULL
WHERE sa_jobqueue.schedule.name = any(CAST(%(schedule_names)s::VARCHAR AS TEXT[]))
AND sa_jobqueue.schedule.paused_by = 'undeclared'
RETURNING sa_jobqueue.schedule.name
