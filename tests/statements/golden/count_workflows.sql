SELECT EXISTS (
    SELECT sa_jobqueue.workflow.id
    FROM sa_jobqueue.workflow
) AS exist,
    (
    SELECT count(*) AS count_1
    FROM (
        SELECT 1
        FROM sa_jobqueue.workflow
        WHERE sa_jobqueue.workflow.finished_at IS NULL
        AND sa_jobqueue.workflow.paused_at IS NULL
        ORDER BY sa_jobqueue.workflow.created_at
        LIMIT %(cap)s::INTEGER
    ) AS page
) AS running,
    (
    SELECT count(*) AS count_2
    FROM (
        SELECT 1
        FROM sa_jobqueue.workflow
        WHERE sa_jobqueue.workflow.finished_at IS NULL
        AND sa_jobqueue.workflow.paused_at IS NOT NULL
        ORDER BY sa_jobqueue.workflow.paused_at
        LIMIT %(cap)s::INTEGER
    ) AS page
) AS paused,
    (
    SELECT count(*) AS count_3
    FROM (
        SELECT 1
        FROM sa_jobqueue.workflow
        WHERE sa_jobqueue.workflow.finished_at IS NULL
        AND sa_jobqueue.workflow.deadline_at <= now()
        ORDER BY sa_jobqueue.workflow.deadline_at
        LIMIT %(cap)s::INTEGER
    ) AS page
) AS overdue,
    (
    SELECT count(*) AS count_4
    FROM (
        SELECT 1
        FROM sa_jobqueue.workflow
        WHERE sa_jobqueue.workflow.status = 'failed'
        ORDER BY sa_jobqueue.workflow.finished_at
        LIMIT %(cap)s::INTEGER
    ) AS page
) AS failed,
    (
    SELECT count(*) AS count_5
    FROM (
        SELECT 1
        FROM sa_jobqueue.workflow_event
        ORDER BY sa_jobqueue.workflow_event.workflow_id,
            sa_jobqueue.workflow_event.id
        LIMIT %(cap)s::INTEGER
    ) AS page
) AS events,
    date_part('epoch', now() - (
    SELECT sa_jobqueue.workflow.created_at
    FROM sa_jobqueue.workflow
    WHERE sa_jobqueue.workflow.finished_at IS NULL
    AND sa_jobqueue.workflow.paused_at IS NULL
    ORDER BY sa_jobqueue.workflow.created_at
    LIMIT 1
)) AS seconds
