WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = any(CAST(%(change_ids)s::VARCHAR AS BIGINT[]))
    AND sa_jobqueue.job.status = 'running'
    ORDER BY sa_jobqueue.job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
    updated AS (
    UPDATE sa_jobqueue.job
    SET status=CASE WHEN (sa_jobqueue.job.cancel_requested_at IS NULL) THEN change.status ELSE change.if_cancelled END,
        run_at=CASE WHEN (CASE WHEN (sa_jobqueue.job.cancel_requested_at IS NULL) THEN change.status ELSE change.if_cancelled END IN ('completed', 'failed', 'cancelled')) THEN sa_jobqueue.job.run_at WHEN (change.delay IS NULL) THEN least(sa_jobqueue.job.run_at, now()) WHEN (change.delay = 0) THEN now() ELSE statement_timestamp() + change.delay * interval '1 second' END,
        lease_expires_at=NULL,
        finished_at=CASE WHEN (CASE WHEN (sa_jobqueue.job.cancel_requested_at IS NULL) THEN change.status ELSE change.if_cancelled END IN ('completed', 'failed', 'cancelled')) THEN statement_timestamp() END,
        purge_at=CASE WHEN (CASE WHEN (sa_jobqueue.job.cancel_requested_at IS NULL) THEN change.status ELSE change.if_cancelled END IN ('completed', 'failed', 'cancelled')) THEN statement_timestamp() + change.retain * interval '1 second' END,
        attempt=greatest(CAST(sa_jobqueue.job.attempt AS INTEGER) + change.attempt, 0),
        rescues=least(CAST(sa_jobqueue.job.rescues AS INTEGER) + change.rescues, 32767),
        errors=CASE WHEN (change.error IS NULL) THEN sa_jobqueue.job.errors ELSE CASE WHEN (jsonb_typeof(sa_jobqueue.job.errors) != 'array') THEN '[]'::jsonb WHEN (jsonb_array_length(sa_jobqueue.job.errors) >= 20) THEN jsonb_path_query_array(sa_jobqueue.job.errors, '$[last - 18 to last]'::jsonpath) ELSE sa_jobqueue.job.errors END || jsonb_build_array(CAST(change.error AS JSONB) || jsonb_build_object('at', statement_timestamp(), 'attempt', sa_jobqueue.job.attempt)) END,
        result=CAST(change.result AS JSONB)
    FROM unnest(CAST(%(change_ids)s::VARCHAR AS BIGINT[]), CAST(%(change_tokens)s::VARCHAR AS BIGINT[]), CAST(%(change_status)s::VARCHAR AS TEXT[]), CAST(%(change_if_cancelled)s::VARCHAR AS TEXT[]), CAST(%(change_delay)s::VARCHAR AS FLOAT(53)[]), CAST(%(change_attempt)s::VARCHAR AS SMALLINT[]), CAST(%(change_rescues)s::VARCHAR AS SMALLINT[]), CAST(%(change_error)s::VARCHAR AS TEXT[]), CAST(%(change_result)s::VARCHAR AS TEXT[]), CAST(%(change_retain)s::VARCHAR AS FLOAT(53)[]), CAST(%(change_expired)s::VARCHAR AS BOOLEAN[])) AS change(id, claim_token, status, if_cancelled, delay, attempt, rescues, error, result, retain, expired)
    WHERE sa_jobqueue.job.id = any(array((
            SELECT locked.id
            FROM locked
        )
    ))
    AND sa_jobqueue.job.id = change.id
    AND sa_jobqueue.job.claim_token IS NOT DISTINCT
    FROM change.claim_token
    AND sa_jobqueue.job.status = 'running'
    AND (NOT change.expired OR sa_jobqueue.job.lease_expires_at IS NULL OR sa_jobqueue.job.lease_expires_at <= now())
    AND NOT coalesce(change.status = 'completed' AND change.retain = 0, false)
    RETURNING CASE WHEN ((
            SELECT sa_jobqueue.any_awaited() AS any_awaited_1
        ) AND sa_jobqueue.job.finished_at IS NOT NULL
    ) THEN (sa_jobqueue.tell_ended(ARRAY[CASE WHEN (sa_jobqueue.job.extras IS NOT NULL AND sa_jobqueue.job.finished_at IS NOT NULL) THEN sa_jobqueue.follow_up(sa_jobqueue.job.id) ELSE sa_jobqueue.job.id END]))[1] ELSE CASE WHEN (sa_jobqueue.job.extras IS NOT NULL AND sa_jobqueue.job.finished_at IS NOT NULL) THEN sa_jobqueue.follow_up(sa_jobqueue.job.id) ELSE sa_jobqueue.job.id END END AS id,
        sa_jobqueue.job.claim_token,
        sa_jobqueue.job.status,
        CASE WHEN (sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')) THEN sa_jobqueue.job.workflow_id END AS workflow_id,
        sa_jobqueue.job.status = 'completed' AS completed
),
    events AS (INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed) SELECT updated.workflow_id AS workflow_id, updated.id AS id, updated.completed AS completed FROM updated WHERE updated.workflow_id IS NOT NULL),
    leaving AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = any(array((
            SELECT change.id
            FROM unnest(CAST(%(change_ids)s::VARCHAR AS BIGINT[]), CAST(%(change_tokens)s::VARCHAR AS BIGINT[]), CAST(%(change_status)s::VARCHAR AS TEXT[]), CAST(%(change_if_cancelled)s::VARCHAR AS TEXT[]), CAST(%(change_delay)s::VARCHAR AS FLOAT(53)[]), CAST(%(change_attempt)s::VARCHAR AS SMALLINT[]), CAST(%(change_rescues)s::VARCHAR AS SMALLINT[]), CAST(%(change_error)s::VARCHAR AS TEXT[]), CAST(%(change_result)s::VARCHAR AS TEXT[]), CAST(%(change_retain)s::VARCHAR AS FLOAT(53)[]), CAST(%(change_expired)s::VARCHAR AS BOOLEAN[])) AS change(id, claim_token, status, if_cancelled, delay, attempt, rescues, error, result, retain, expired)
            WHERE change.status = 'completed'
            AND change.retain = 0
        )
    ))
    AND sa_jobqueue.job.status = 'running'
    ORDER BY sa_jobqueue.job.id
    FOR UPDATE SKIP LOCKED
),
    deleted AS (
    DELETE
    FROM sa_jobqueue.job
    USING unnest(CAST(%(change_ids)s::VARCHAR AS BIGINT[]), CAST(%(change_tokens)s::VARCHAR AS BIGINT[]), CAST(%(change_status)s::VARCHAR AS TEXT[]), CAST(%(change_if_cancelled)s::VARCHAR AS TEXT[]), CAST(%(change_delay)s::VARCHAR AS FLOAT(53)[]), CAST(%(change_attempt)s::VARCHAR AS SMALLINT[]), CAST(%(change_rescues)s::VARCHAR AS SMALLINT[]), CAST(%(change_error)s::VARCHAR AS TEXT[]), CAST(%(change_result)s::VARCHAR AS TEXT[]), CAST(%(change_retain)s::VARCHAR AS FLOAT(53)[]), CAST(%(change_expired)s::VARCHAR AS BOOLEAN[])) AS change(id, claim_token, status, if_cancelled, delay, attempt, rescues, error, result, retain, expired)
    WHERE sa_jobqueue.job.id = any(array((
            SELECT leaving.id
            FROM leaving
        )
    ))
    AND sa_jobqueue.job.id = any(array((
            SELECT locked.id
            FROM locked
        )
    ))
    AND sa_jobqueue.job.id = change.id
    AND sa_jobqueue.job.claim_token IS NOT DISTINCT
    FROM change.claim_token
    AND sa_jobqueue.job.status = 'running'
    AND (NOT change.expired OR sa_jobqueue.job.lease_expires_at IS NULL OR sa_jobqueue.job.lease_expires_at <= now())
    AND change.status = 'completed'
    AND change.retain = 0
    RETURNING CASE WHEN (
        SELECT sa_jobqueue.any_awaited() AS any_awaited_2
    ) THEN (sa_jobqueue.tell_ended(ARRAY[sa_jobqueue.job.id]))[1] ELSE sa_jobqueue.job.id END AS id,
        sa_jobqueue.job.claim_token,
        sa_jobqueue.job.status
)
SELECT change.id,
    change.claim_token,
    CASE WHEN (done.status = 'cancelled' AND change.status != 'cancelled') THEN 'cancelled' WHEN (done.id IS NOT NULL) THEN 'applied' WHEN (
    SELECT true
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = change.id AND sa_jobqueue.job.claim_token IS NOT DISTINCT
    FROM change.claim_token AND sa_jobqueue.job.status = 'running' AND (NOT change.expired OR sa_jobqueue.job.lease_expires_at IS NULL OR sa_jobqueue.job.lease_expires_at <= now())
) THEN 'locked' ELSE 'lost' END AS answer
FROM unnest(CAST(%(change_ids)s::VARCHAR AS BIGINT[]), CAST(%(change_tokens)s::VARCHAR AS BIGINT[]), CAST(%(change_status)s::VARCHAR AS TEXT[]), CAST(%(change_if_cancelled)s::VARCHAR AS TEXT[]), CAST(%(change_delay)s::VARCHAR AS FLOAT(53)[]), CAST(%(change_attempt)s::VARCHAR AS SMALLINT[]), CAST(%(change_rescues)s::VARCHAR AS SMALLINT[]), CAST(%(change_error)s::VARCHAR AS TEXT[]), CAST(%(change_result)s::VARCHAR AS TEXT[]), CAST(%(change_retain)s::VARCHAR AS FLOAT(53)[]), CAST(%(change_expired)s::VARCHAR AS BOOLEAN[])) AS change(id, claim_token, status, if_cancelled, delay, attempt, rescues, error, result, retain, expired)
LEFT OUTER JOIN (
    SELECT deleted.id AS id,
        deleted.claim_token AS claim_token,
        deleted.status AS status
    FROM deleted
    UNION ALL
    SELECT updated.id AS id,
        updated.claim_token AS claim_token,
        updated.status AS status
    FROM updated
) AS done ON done.id = change.id
AND done.claim_token IS NOT DISTINCT
FROM change.claim_token
