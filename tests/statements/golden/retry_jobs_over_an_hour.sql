WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id,
        sa_jobqueue.job.uniqueness AS uniqueness,
        sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')
    OR sa_jobqueue.job.status IN ('queued', 'blocked')
    AND coalesce(sa_jobqueue.job.expires_at <= now() AND NOT (sa_jobqueue.job.attempt > 0 OR sa_jobqueue.job.rescues > 0) OR sa_jobqueue.job.deadline_at <= now(), false) AS keyless,
        CASE WHEN (sa_jobqueue.job.status != 'queued') THEN sa_jobqueue.job.workflow_id END AS workflow_id,
        CASE WHEN (sa_jobqueue.job.status != 'queued') THEN sa_jobqueue.job.id END AS rested
    FROM sa_jobqueue.job
    WHERE (sa_jobqueue.job.status IN ('queued', 'completed', 'failed', 'cancelled') OR sa_jobqueue.job.status = 'blocked' AND sa_jobqueue.job.blocked_by IS NULL AND (EXISTS (
        SELECT 1
        FROM sa_jobqueue.wait
        WHERE sa_jobqueue.wait.job_id = sa_jobqueue.job.id
        AND sa_jobqueue.wait.resumed_at IS NULL
        AND sa_jobqueue.wait.signal IS NULL
        AND sa_jobqueue.wait.due_at IS NULL
    )))
    AND sa_jobqueue.job.id = %(id_1)s::BIGINT
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job
),
    may_be_queued AS MATERIALIZED (
    SELECT locked.id AS id,
        CASE WHEN (locked.keyless AND locked.uniqueness IS NOT NULL AND (locked.uniqueness ->> 'scope') IS DISTINCT FROM 'window') THEN sa_jobqueue.take_key(locked.id, locked.uniqueness) ELSE true END AS may,
        locked.workflow_id AS workflow_id,
        locked.rested AS rested
    FROM locked
),
    back_in AS (
    SELECT may_be_queued.id AS id,
        may_be_queued.workflow_id AS workflow_id
    FROM may_be_queued
    WHERE may_be_queued.may
),
    events AS (INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed) SELECT back_in.workflow_id AS workflow_id, back_in.id AS id, CAST(NULL AS BOOLEAN) AS anon_1 FROM back_in WHERE back_in.workflow_id IS NOT NULL RETURNING sa_jobqueue.tell_workflows() AS told),
    came_back AS (
    SELECT sa_jobqueue.workflow_dependency.child_id AS child_id,
        min(sa_jobqueue.workflow_dependency.parent_id) AS parent_id
    FROM sa_jobqueue.workflow_dependency
    JOIN back_in ON back_in.id = sa_jobqueue.workflow_dependency.parent_id
    WHERE back_in.workflow_id IS NOT NULL
    AND sa_jobqueue.workflow_dependency.policy != 'count'
    GROUP BY sa_jobqueue.workflow_dependency.child_id
),
    children AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id,
        came_back.parent_id AS parent_id
    FROM sa_jobqueue.job
    JOIN came_back ON came_back.child_id = sa_jobqueue.job.id
    WHERE (sa_jobqueue.job.status = 'queued' OR sa_jobqueue.job.status = 'blocked' AND (sa_jobqueue.job.blocked_by = 0 OR sa_jobqueue.job.blocked_by > came_back.parent_id))
    AND (sa_jobqueue.job.id NOT IN (
        SELECT locked.id
        FROM locked
    ))
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
    taken_back AS (
    UPDATE sa_jobqueue.job
    SET status='blocked',
        run_at=sa_jobqueue.job.run_at,
        blocked_by=children.parent_id
    FROM children
    WHERE sa_jobqueue.job.id = children.id
    AND sa_jobqueue.job.status IN ('queued', 'blocked')
    RETURNING sa_jobqueue.job.id
),
    waits_over AS (
    DELETE
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.job_id = any(array((
            SELECT may_be_queued.rested
            FROM may_be_queued
            WHERE may_be_queued.may
        )
    ))
    RETURNING sa_jobqueue.wait.job_id,
        sa_jobqueue.wait.step
),
    accepted AS (
    UPDATE sa_jobqueue.step
    SET digest=%(param_1)s::VARCHAR
    FROM waits_over
    WHERE sa_jobqueue.step.job_id = waits_over.job_id
    AND sa_jobqueue.step.name = waits_over.step
),
    place AS (
    SELECT again.id AS id,
        CAST(row_number() OVER (ORDER BY again.id) - 1 AS FLOAT) / CAST(count(*) OVER () AS NUMERIC) AS share
    FROM (
        SELECT may_be_queued.id AS id
        FROM may_be_queued
        WHERE may_be_queued.may
    ) AS again
)
UPDATE sa_jobqueue.job
SET status=CASE WHEN (sa_jobqueue.job.status != 'queued' AND sa_jobqueue.job.workflow_id IS NOT NULL) THEN 'blocked' ELSE 'queued' END,
    run_at=(now() + place.share * %(spread_seconds)s * interval '1 second'),
    lease_expires_at=NULL,
    finished_at=NULL,
    purge_at=NULL,
    cancel_requested_at=NULL,
    attempt=CASE WHEN (sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')) THEN 0 ELSE sa_jobqueue.job.attempt END,
    rescues=0,
    result=NULL,
    expires_at=CASE WHEN (sa_jobqueue.job.expires_at > now()) THEN sa_jobqueue.job.expires_at END,
    deadline_at=CASE WHEN (sa_jobqueue.job.deadline_at > now()) THEN sa_jobqueue.job.deadline_at END,
    duplicate_of=NULL,
    blocked_by=CASE WHEN (sa_jobqueue.job.status != 'queued' AND sa_jobqueue.job.workflow_id IS NOT NULL) THEN -sa_jobqueue.job.workflow_id ELSE sa_jobqueue.job.blocked_by END
FROM place
WHERE sa_jobqueue.job.id = place.id
AND (sa_jobqueue.job.status IN ('queued', 'completed', 'failed', 'cancelled') OR sa_jobqueue.job.status = 'blocked' AND sa_jobqueue.job.blocked_by IS NULL AND (EXISTS (
    SELECT 1
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.job_id = sa_jobqueue.job.id
    AND sa_jobqueue.wait.resumed_at IS NULL
    AND sa_jobqueue.wait.signal IS NULL
    AND sa_jobqueue.wait.due_at IS NULL
)))
RETURNING sa_jobqueue.job.id
