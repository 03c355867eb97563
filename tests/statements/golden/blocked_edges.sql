SELECT sa_jobqueue.workflow_dependency.child_id,
    sa_jobqueue.workflow_dependency.parent_id
FROM sa_jobqueue.job AS child
JOIN sa_jobqueue.workflow_dependency ON sa_jobqueue.workflow_dependency.child_id = child.id
JOIN sa_jobqueue.job AS parent ON parent.id = sa_jobqueue.workflow_dependency.parent_id
WHERE child.status = 'blocked'
AND child.blocked_by IS NOT NULL
AND parent.status = 'blocked'
LIMIT %(sample)s::INTEGER
