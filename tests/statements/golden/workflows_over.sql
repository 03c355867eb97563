SELECT sa_jobqueue.workflow.id
FROM sa_jobqueue.workflow
WHERE sa_jobqueue.workflow.purge_at <= now()
AND NOT (EXISTS (
    SELECT sa_jobqueue.workflow_event.id
    FROM sa_jobqueue.workflow_event
    WHERE sa_jobqueue.workflow_event.workflow_id = sa_jobqueue.workflow.id
))
ORDER BY sa_jobqueue.workflow.purge_at
LIMIT %(page)s::INTEGER
