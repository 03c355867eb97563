WITH RECURSIVE flow(id) AS (
    SELECT (
        SELECT sa_jobqueue.workflow_event.workflow_id
        FROM sa_jobqueue.workflow_event
        ORDER BY sa_jobqueue.workflow_event.workflow_id
        LIMIT 1
    ) AS id
    UNION ALL
    SELECT (
        SELECT sa_jobqueue.workflow_event.workflow_id
        FROM sa_jobqueue.workflow_event
        WHERE sa_jobqueue.workflow_event.workflow_id > flow.id
        ORDER BY sa_jobqueue.workflow_event.workflow_id
        LIMIT 1
    ) AS anon_1
    FROM flow
    WHERE flow.id IS NOT NULL
)
SELECT (
    SELECT array_agg(found.id) AS array_agg_1
    FROM (
        SELECT flow.id AS id
        FROM flow
        WHERE flow.id IS NOT NULL
        AND NOT (EXISTS (
            SELECT sa_jobqueue.workflow.id
            FROM sa_jobqueue.workflow
            WHERE sa_jobqueue.workflow.id = flow.id
            AND sa_jobqueue.workflow.paused_at IS NOT NULL
            AND sa_jobqueue.workflow.cancelled_at IS NULL
            LIMIT ALL OFFSET 0
        ))
        LIMIT %(page)s::INTEGER
    ) AS found
) AS workflows,
    (
    SELECT array_agg(overdue.id) AS array_agg_2
    FROM (
        SELECT sa_jobqueue.workflow.id AS id
        FROM sa_jobqueue.workflow
        WHERE sa_jobqueue.workflow.deadline_at <= now()
        AND sa_jobqueue.workflow.finished_at IS NULL
        AND sa_jobqueue.workflow.cancelled_at IS NULL
        ORDER BY sa_jobqueue.workflow.deadline_at
        LIMIT %(page)s::INTEGER
    ) AS overdue
) AS overdue
