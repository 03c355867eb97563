SELECT sa_jobqueue.workflow_dependency.position,
    sa_jobqueue.workflow_dependency.policy,
    sa_jobqueue.workflow_dependency.parent_id,
    sa_jobqueue.job.status,
    CAST(sa_jobqueue.job.result AS TEXT) AS result,
    CASE WHEN (sa_jobqueue.job.status != 'completed') THEN CAST(sa_jobqueue.job.errors -> -1 AS TEXT) END AS error
FROM sa_jobqueue.workflow_dependency
LEFT OUTER JOIN sa_jobqueue.job ON sa_jobqueue.job.id = sa_jobqueue.workflow_dependency.parent_id
WHERE sa_jobqueue.workflow_dependency.child_id = %(child_id)s::BIGINT
AND sa_jobqueue.workflow_dependency.position IS NOT NULL
AND sa_jobqueue.workflow_dependency.position > %(after)s::INTEGER
ORDER BY sa_jobqueue.workflow_dependency.position
LIMIT %(page)s::INTEGER
