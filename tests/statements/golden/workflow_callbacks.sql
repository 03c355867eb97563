SELECT sa_jobqueue.workflow_callback.event,
    sa_jobqueue.workflow_callback.task,
    sa_jobqueue.workflow_callback.queue,
    sa_jobqueue.workflow_callback.fired_at
FROM sa_jobqueue.workflow_callback
WHERE sa_jobqueue.workflow_callback.workflow_id = %(of_workflow)s::BIGINT
ORDER BY sa_jobqueue.workflow_callback.number
