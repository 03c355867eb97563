WITH chosen AS MATERIALIZED (
    SELECT golden_queue.job.id AS id
    FROM golden_queue.job
    WHERE golden_queue.job.purge_at <= now()
    AND golden_queue.job.purge_at >= to_timestamp(%(after)s)
    AND golden_queue.job.status IN ('completed', 'failed', 'cancelled')
    ORDER BY golden_queue.job.purge_at
    LIMIT %(page)s::INTEGER
    FOR UPDATE SKIP LOCKED
),
    gone AS (
    DELETE
    FROM golden_queue.job
    WHERE golden_queue.job.id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING golden_queue.job.id,
        golden_queue.job.status,
        golden_queue.job.claims,
        golden_queue.job.claim_token,
        golden_queue.job.run_at,
        golden_queue.job.created_at,
        golden_queue.job.claimed_at,
        golden_queue.job.lease_expires_at,
        golden_queue.job.finished_at,
        golden_queue.job.purge_at,
        golden_queue.job.cancel_requested_at,
        golden_queue.job.priority,
        golden_queue.job.attempt,
        golden_queue.job.max_attempts,
        golden_queue.job.rescues,
        golden_queue.job.queue,
        golden_queue.job.task,
        golden_queue.job.args,
        golden_queue.job.meta,
        golden_queue.job.worker,
        golden_queue.job.errors,
        golden_queue.job.result,
        golden_queue.job.uniqueness,
        golden_queue.job.expires_at,
        golden_queue.job.deadline_at,
        golden_queue.job.duplicate_of,
        golden_queue.job.schedule_id,
        golden_queue.job.tick_at,
        golden_queue.job.ticks,
        golden_queue.job.concurrency_key,
        golden_queue.job.units,
        golden_queue.job.workflow_id,
        golden_queue.job.blocked_by,
        golden_queue.job.inputs,
        golden_queue.job.extras,
        golden_queue.job.ready_at,
        golden_queue.job.subject_type,
        golden_queue.job.subject_id,
        to_jsonb(job.*) - CAST('{id,status,claims,claim_token,run_at,created_at,claimed_at,lease_expires_at,finished_at,purge_at,cancel_requested_at,priority,attempt,max_attempts,rescues,queue,task,args,meta,worker,errors,result,uniqueness,expires_at,deadline_at,duplicate_of,schedule_id,tick_at,ticks,concurrency_key,units,workflow_id,blocked_by,inputs,extras,ready_at,subject_type,subject_id}' AS TEXT[]) AS own_columns
),
    progress_gone AS (
    DELETE
    FROM golden_queue.job_progress
    WHERE golden_queue.job_progress.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING golden_queue.job_progress.job_id,
        golden_queue.job_progress.claim_token,
        golden_queue.job_progress.fraction,
        golden_queue.job_progress.written_at,
        golden_queue.job_progress.claims,
        golden_queue.job_progress.message
),
    log_gone AS (
    DELETE
    FROM golden_queue.job_log
    WHERE golden_queue.job_log.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING golden_queue.job_log.job_id,
        golden_queue.job_log.claim_token,
        golden_queue.job_log.part,
        golden_queue.job_log.written_at,
        golden_queue.job_log.attempt,
        golden_queue.job_log.lines
),
    last_lines AS (
    SELECT log_gone.job_id AS job_id,
        jsonb_agg(lines.line ORDER BY log_gone.part, lines.place) AS lines
    FROM log_gone
    JOIN gone ON gone.id = log_gone.job_id
    AND gone.claim_token = log_gone.claim_token,
        jsonb_array_elements(log_gone.lines)
    WITH ORDINALITY AS lines(line, place)
    GROUP BY log_gone.job_id
),
    step_gone AS (
    DELETE
    FROM golden_queue.step
    WHERE golden_queue.step.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING golden_queue.step.job_id,
        golden_queue.step.claim_token,
        golden_queue.step.unused_by,
        golden_queue.step.ended_at,
        golden_queue.step.took,
        golden_queue.step.revision,
        golden_queue.step.kind,
        golden_queue.step.name,
        golden_queue.step.digest,
        golden_queue.step.result
),
    recorded AS (
    SELECT step_gone.job_id AS job_id,
        jsonb_agg(jsonb_build_object('name', step_gone.name, 'kind', step_gone.kind, 'revision', step_gone.revision, 'ended_at', step_gone.ended_at, 'took', step_gone.took, 'orphaned', coalesce(gone.status = 'completed' AND step_gone.unused_by = gone.claim_token, false), 'size', CASE WHEN (CASE WHEN (CASE WHEN (pg_column_size(step_gone.result) <= 1000) THEN octet_length(CAST(step_gone.result AS TEXT)) ELSE pg_column_size(step_gone.result) END <= 1000) THEN step_gone.result END IS NULL) THEN CASE WHEN (pg_column_size(step_gone.result) <= 1000) THEN octet_length(CAST(step_gone.result AS TEXT)) ELSE pg_column_size(step_gone.result) END END, 'result', CASE WHEN (CASE WHEN (pg_column_size(step_gone.result) <= 1000) THEN octet_length(CAST(step_gone.result AS TEXT)) ELSE pg_column_size(step_gone.result) END <= 1000) THEN step_gone.result END) ORDER BY step_gone.ended_at, step_gone.name) AS steps
    FROM step_gone
    JOIN gone ON gone.id = step_gone.job_id
    GROUP BY step_gone.job_id
),
    moved AS (INSERT INTO golden_queue.archived_job (id, status, claims, claim_token, run_at, created_at, claimed_at, lease_expires_at, finished_at, purge_at, cancel_requested_at, priority, attempt, max_attempts, rescues, queue, task, args, meta, worker, errors, result, uniqueness, expires_at, deadline_at, duplicate_of, schedule_id, tick_at, ticks, concurrency_key, units, workflow_id, blocked_by, inputs, extras, ready_at, subject_type, subject_id, progress, progress_message, logs, steps, columns) SELECT gone.id AS id, gone.status AS status, gone.claims AS claims, gone.claim_token AS claim_token, gone.run_at AS run_at, gone.created_at AS created_at, gone.claimed_at AS claimed_at, gone.lease_expires_at AS lease_expires_at, least(greatest(coalesce(gone.finished_at, now()), to_timestamp(0)), now()) AS least_1, gone.purge_at AS purge_at, gone.cancel_requested_at AS cancel_requested_at, gone.priority AS priority, gone.attempt AS attempt, gone.max_attempts AS max_attempts, gone.rescues AS rescues, gone.queue AS queue, gone.task AS task, gone.args AS args, gone.meta AS meta, gone.worker AS worker, gone.errors AS errors, gone.result AS result, gone.uniqueness AS uniqueness, gone.expires_at AS expires_at, gone.deadline_at AS deadline_at, gone.duplicate_of AS duplicate_of, gone.schedule_id AS schedule_id, gone.tick_at AS tick_at, gone.ticks AS ticks, gone.concurrency_key AS concurrency_key, gone.units AS units, gone.workflow_id AS workflow_id, gone.blocked_by AS blocked_by, gone.inputs AS inputs, gone.extras AS extras, gone.ready_at AS ready_at, gone.subject_type AS subject_type, gone.subject_id AS subject_id, progress_gone.fraction AS fraction, progress_gone.message AS message, last_lines.lines AS lines, recorded.steps AS steps, gone.own_columns AS own_columns FROM gone LEFT OUTER JOIN progress_gone ON progress_gone.job_id = gone.id AND progress_gone.claim_token = gone.claim_token LEFT OUTER JOIN last_lines ON last_lines.job_id = gone.id LEFT OUTER JOIN recorded ON recorded.job_id = gone.id WHERE gone.task = ANY (array((
        SELECT golden_queue.archived_task.name
        FROM golden_queue.archived_task
    )
))),
    wait_gone AS (
    DELETE
    FROM golden_queue.wait
    WHERE golden_queue.wait.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING golden_queue.wait.job_id,
        golden_queue.wait.since,
        golden_queue.wait.until,
        golden_queue.wait.due_at,
        golden_queue.wait.resumed_at,
        golden_queue.wait.is_new,
        golden_queue.wait.step,
        golden_queue.wait.signal,
        golden_queue.wait.question,
        golden_queue.wait.jobs
)
SELECT count(*) AS jobs,
    max(date_part('epoch', gone.purge_at)) AS reached
FROM gone
