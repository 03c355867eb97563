WITH page AS MATERIALIZED (
    SELECT sa_jobqueue.workflow_dependency.child_id AS child_id,
        sa_jobqueue.workflow_dependency.parent_id AS parent_id,
        sa_jobqueue.workflow_dependency.policy AS policy,
        sa_jobqueue.workflow_dependency.position AS position
    FROM sa_jobqueue.workflow_dependency
    WHERE sa_jobqueue.workflow_dependency.child_id = %(child_id)s::BIGINT
    AND sa_jobqueue.workflow_dependency.position > %(after)s::INTEGER
    ORDER BY sa_jobqueue.workflow_dependency.position
    LIMIT %(page)s::INTEGER
)
SELECT page.position,
    page.policy,
    page.parent_id,
    sa_jobqueue.job.status,
    CAST(sa_jobqueue.job.result AS TEXT) AS result,
    CASE WHEN (sa_jobqueue.job.status != 'completed') THEN CAST(sa_jobqueue.job.errors -> -1 AS TEXT) END AS error
FROM page
LEFT OUTER JOIN sa_jobqueue.job ON sa_jobqueue.job.id = page.parent_id
WHERE page.child_id = %(child_id)s::BIGINT
AND page.position IS NOT NULL
ORDER BY page.position
