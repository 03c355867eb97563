WITH RECURSIVE flow(id, number) AS (
    SELECT (
        SELECT sa_jobqueue.workflow_event.workflow_id
        FROM sa_jobqueue.workflow_event
        ORDER BY sa_jobqueue.workflow_event.workflow_id
        LIMIT 1
    ) AS id,
        1 AS number
    UNION ALL
    SELECT (
        SELECT sa_jobqueue.workflow_event.workflow_id
        FROM sa_jobqueue.workflow_event
        WHERE sa_jobqueue.workflow_event.workflow_id > flow.id
        ORDER BY sa_jobqueue.workflow_event.workflow_id
        LIMIT 1
    ) AS anon_1,
        flow.number + 1 AS anon_2
    FROM flow
    WHERE flow.id IS NOT NULL
    AND flow.number < %(looked)s::INTEGER
)
SELECT behind.id,
    date_part('epoch', now() - since.first) AS seconds
FROM (
    SELECT flow.id AS id
    FROM flow
    WHERE EXISTS (
        SELECT sa_jobqueue.workflow.id
        FROM sa_jobqueue.workflow
        WHERE sa_jobqueue.workflow.id = flow.id
        AND (sa_jobqueue.workflow.paused_at IS NULL OR sa_jobqueue.workflow.cancelled_at IS NOT NULL)
        LIMIT ALL OFFSET 0
    )
    LIMIT %(most)s::INTEGER
) AS behind
JOIN LATERAL (
    SELECT min((
            SELECT sa_jobqueue.job.finished_at
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.id = page.job_id
            LIMIT ALL OFFSET 0
        )
    ) AS first
    FROM (
        SELECT sa_jobqueue.workflow_event.job_id AS job_id
        FROM sa_jobqueue.workflow_event
        WHERE sa_jobqueue.workflow_event.workflow_id = behind.id
        ORDER BY sa_jobqueue.workflow_event.workflow_id,
            sa_jobqueue.workflow_event.id
        LIMIT 10
    ) AS page
) AS since ON true
