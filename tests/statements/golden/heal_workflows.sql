WITH page AS MATERIALIZED (
    SELECT sa_jobqueue.workflow.id AS id,
        sa_jobqueue.workflow.watched_id AS watched_id,
        sa_jobqueue.workflow.finished_at AS finished_at
    FROM sa_jobqueue.workflow
    WHERE sa_jobqueue.workflow.id > %(after_id)s::BIGINT
    ORDER BY sa_jobqueue.workflow.id
    LIMIT %(page)s::INTEGER
),
    appended AS (INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed) SELECT page.id AS id, -page.id AS job_id, CAST(NULL AS BOOLEAN) AS anon_1 FROM page WHERE page.finished_at IS NULL AND NOT (EXISTS (
    SELECT sa_jobqueue.workflow_event.id
    FROM sa_jobqueue.workflow_event
    WHERE sa_jobqueue.workflow_event.workflow_id = page.id
    LIMIT ALL OFFSET 0
)) AND NOT (EXISTS (
    SELECT sa_jobqueue.job.id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = page.watched_id
    AND (sa_jobqueue.job.status NOT IN ('completed', 'failed', 'cancelled'))
    LIMIT ALL OFFSET 0
)) AND NOT (EXISTS (
    SELECT sa_jobqueue.job.id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.workflow_id = page.id
    AND (sa_jobqueue.job.status NOT IN ('completed', 'failed', 'cancelled'))
    LIMIT ALL OFFSET 0
)) UNION ALL SELECT page.id AS id, sa_jobqueue.workflow_join.job_id AS job_id, CAST(NULL AS BOOLEAN) AS anon_1 FROM page JOIN sa_jobqueue.workflow_join ON sa_jobqueue.workflow_join.workflow_id = page.id WHERE page.finished_at IS NULL AND NOT (EXISTS (
    SELECT sa_jobqueue.workflow_event.id
    FROM sa_jobqueue.workflow_event
    WHERE sa_jobqueue.workflow_event.workflow_id = page.id
    LIMIT ALL OFFSET 0
)) AND (EXISTS (
    SELECT child.id
    FROM sa_jobqueue.job AS child
    WHERE child.id = sa_jobqueue.workflow_join.job_id
    AND child.status = 'blocked'
    AND child.blocked_by = 0
    LIMIT ALL OFFSET 0
)) AND NOT (EXISTS (
    SELECT sa_jobqueue.workflow_dependency.parent_id
    FROM sa_jobqueue.workflow_dependency
    JOIN sa_jobqueue.job AS parent ON parent.id = sa_jobqueue.workflow_dependency.parent_id
    WHERE sa_jobqueue.workflow_dependency.child_id = sa_jobqueue.workflow_join.job_id
    AND sa_jobqueue.workflow_dependency.policy = 'count'
    AND (parent.status NOT IN ('completed', 'failed', 'cancelled'))
    LIMIT ALL OFFSET 0
)) RETURNING sa_jobqueue.workflow_event.id)
SELECT (
    SELECT max(page.id) AS max_1
    FROM page
) AS last,
    (
    SELECT count(*) AS count_1
    FROM appended
) AS healed
