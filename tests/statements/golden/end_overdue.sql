WITH "over" AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id,
        sa_jobqueue.job.uniqueness ->> 'key' AS key,
        sa_jobqueue.job.workflow_id AS workflow_id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status IN ('queued', 'blocked')
    AND now() >= least(sa_jobqueue.job.expires_at, sa_jobqueue.job.deadline_at)
    AND sa_jobqueue.job.deadline_at <= now()
    ORDER BY least(sa_jobqueue.job.expires_at, sa_jobqueue.job.deadline_at)
    LIMIT %(page)s::INTEGER
    FOR NO KEY UPDATE SKIP LOCKED
),
    given_back AS MATERIALIZED (
    SELECT sa_jobqueue.unique_key.key AS key
    FROM sa_jobqueue.unique_key
    WHERE sa_jobqueue.unique_key.key = any(array((
            SELECT "over".key
            FROM "over"
            WHERE "over".key IS NOT NULL
        )
    ))
    AND sa_jobqueue.unique_key.job_id = any(array((
            SELECT "over".id
            FROM "over"
            WHERE "over".key IS NOT NULL
        )
    ))
    AND sa_jobqueue.unique_key.expires_at IS NULL
    ORDER BY sa_jobqueue.unique_key.key
    FOR UPDATE SKIP LOCKED
),
    freed_keys AS (
    DELETE
    FROM sa_jobqueue.unique_key
    WHERE sa_jobqueue.unique_key.key = any(array((
            SELECT given_back.key
            FROM given_back
        )
    ))
    AND sa_jobqueue.unique_key.keep IS NULL
),
    kept_keys AS (
    UPDATE sa_jobqueue.unique_key
    SET expires_at=(statement_timestamp() + sa_jobqueue.unique_key.keep * interval '1 second')
    WHERE sa_jobqueue.unique_key.key = any(array((
            SELECT given_back.key
            FROM given_back
        )
    ))
    AND sa_jobqueue.unique_key.keep IS NOT NULL
),
    events AS (INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed) SELECT "over".workflow_id AS workflow_id, "over".id AS id, false FROM "over" WHERE "over".workflow_id IS NOT NULL RETURNING sa_jobqueue.tell_workflows() AS told)
UPDATE sa_jobqueue.job
SET status='failed',
    lease_expires_at=NULL,
    finished_at=statement_timestamp(),
    purge_at=CASE WHEN (sa_jobqueue.job.workflow_id IS NULL) THEN statement_timestamp() + 2592000.0 * interval '1 second' END,
    errors=(CASE WHEN (jsonb_typeof(sa_jobqueue.job.errors) != 'array') THEN '[]'::jsonb WHEN (jsonb_array_length(sa_jobqueue.job.errors) >= 20) THEN jsonb_path_query_array(sa_jobqueue.job.errors, '$[last - 18 to last]'::jsonpath) ELSE sa_jobqueue.job.errors END || jsonb_build_array(jsonb_build_object('type', %(error_type)s::VARCHAR, 'message', %(error_message)s::VARCHAR, 'traceback', '') || jsonb_build_object('at', statement_timestamp(), 'attempt', sa_jobqueue.job.attempt))),
    result=NULL,
    blocked_by=NULL
WHERE sa_jobqueue.job.id = any(array((
        SELECT "over".id
        FROM "over"
    )
))
AND sa_jobqueue.job.status IN ('queued', 'blocked')
RETURNING CASE WHEN ((
        SELECT sa_jobqueue.any_awaited() AS any_awaited_1
    ) AND sa_jobqueue.job.finished_at IS NOT NULL
) THEN (sa_jobqueue.tell_ended(ARRAY[CASE WHEN (sa_jobqueue.job.extras IS NOT NULL AND sa_jobqueue.job.finished_at IS NOT NULL) THEN sa_jobqueue.follow_up(sa_jobqueue.job.id) ELSE sa_jobqueue.job.id END]))[1] ELSE CASE WHEN (sa_jobqueue.job.extras IS NOT NULL AND sa_jobqueue.job.finished_at IS NOT NULL) THEN sa_jobqueue.follow_up(sa_jobqueue.job.id) ELSE sa_jobqueue.job.id END END AS id,
    sa_jobqueue.job.queue,
    sa_jobqueue.job.task
