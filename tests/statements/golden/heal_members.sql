WITH page AS MATERIALIZED (
    SELECT sa_jobqueue.job.blocked_by AS blocked_by,
        sa_jobqueue.job.workflow_id AS workflow_id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'blocked'
    AND sa_jobqueue.job.blocked_by > %(after_id)s::BIGINT
    ORDER BY sa_jobqueue.job.blocked_by
    LIMIT %(page)s::INTEGER
),
    appended AS (INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed) SELECT DISTINCT page.workflow_id AS workflow_id, page.blocked_by AS blocked_by, CAST(false AS BOOLEAN) AS "false" FROM page WHERE page.blocked_by > 0 AND NOT (EXISTS (
    SELECT parent.id
    FROM sa_jobqueue.job AS parent
    WHERE parent.id = page.blocked_by
    AND (parent.status NOT IN ('completed', 'failed', 'cancelled'))
)) AND NOT (EXISTS (
    SELECT sa_jobqueue.workflow_event.id
    FROM sa_jobqueue.workflow_event
    WHERE sa_jobqueue.workflow_event.workflow_id = page.workflow_id
    AND sa_jobqueue.workflow_event.job_id = page.blocked_by
)) RETURNING sa_jobqueue.workflow_event.id)
SELECT (
    SELECT max(page.blocked_by) AS max_1
    FROM page
) AS last,
    (
    SELECT count(*) AS count_1
    FROM appended
) AS healed,
    (
    SELECT array_agg(DISTINCT page.workflow_id) AS array_agg_1
    FROM page
    WHERE NOT (EXISTS (
        SELECT sa_jobqueue.workflow.id
        FROM sa_jobqueue.workflow
        WHERE sa_jobqueue.workflow.id = page.workflow_id
    ))
) AS gone
