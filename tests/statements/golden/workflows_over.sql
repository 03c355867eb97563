SELECT sa_jobqueue.workflow.id
FROM sa_jobqueue.workflow
WHERE sa_jobqueue.workflow.purge_at <= now()
ORDER BY sa_jobqueue.workflow.purge_at
LIMIT %(page)s::INTEGER
