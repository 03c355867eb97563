UPDATE sa_jobqueue.workflow
SET purge_at=(now() + interval '1 day')
WHERE sa_jobqueue.workflow.id = %(of_workflow)s::BIGINT
