SELECT sa_jobqueue.workflow.id
FROM sa_jobqueue.workflow
WHERE sa_jobqueue.workflow.finished_at IS NULL
AND sa_jobqueue.workflow.paused_at <= now() - %(paused_seconds)s * interval '1 second'
ORDER BY sa_jobqueue.workflow.paused_at
LIMIT 100
