SELECT sa_jobqueue.job.id,
    sa_jobqueue.job.task,
    sa_jobqueue.job.status,
    sa_jobqueue.job.created_at,
    sa_jobqueue.job.claimed_at,
    sa_jobqueue.job.finished_at,
    before.parents,
    before.policies
FROM sa_jobqueue.job
JOIN LATERAL (
    SELECT array_agg(sa_jobqueue.workflow_dependency.parent_id ORDER BY sa_jobqueue.workflow_dependency.parent_id) AS parents,
        array_agg(sa_jobqueue.workflow_dependency.policy ORDER BY sa_jobqueue.workflow_dependency.parent_id) AS policies
    FROM sa_jobqueue.workflow_dependency
    WHERE sa_jobqueue.workflow_dependency.child_id = sa_jobqueue.job.id
) AS before ON true
WHERE sa_jobqueue.job.workflow_id = %(of_workflow)s::BIGINT
ORDER BY sa_jobqueue.job.id
LIMIT %(page)s::INTEGER
