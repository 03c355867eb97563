WITH chosen AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = %(id_1)s::BIGINT
    AND sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled')
    LIMIT %(page)s::INTEGER
    FOR UPDATE SKIP LOCKED
),
    gone AS (
    DELETE
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING sa_jobqueue.job.id,
        sa_jobqueue.job.status,
        sa_jobqueue.job.claims,
        sa_jobqueue.job.claim_token,
        sa_jobqueue.job.run_at,
        sa_jobqueue.job.created_at,
        sa_jobqueue.job.claimed_at,
        sa_jobqueue.job.lease_expires_at,
        sa_jobqueue.job.finished_at,
        sa_jobqueue.job.purge_at,
        sa_jobqueue.job.cancel_requested_at,
        sa_jobqueue.job.priority,
        sa_jobqueue.job.attempt,
        sa_jobqueue.job.max_attempts,
        sa_jobqueue.job.rescues,
        sa_jobqueue.job.queue,
        sa_jobqueue.job.task,
        sa_jobqueue.job.args,
        sa_jobqueue.job.meta,
        sa_jobqueue.job.worker,
        sa_jobqueue.job.errors,
        sa_jobqueue.job.result,
        sa_jobqueue.job.uniqueness,
        sa_jobqueue.job.expires_at,
        sa_jobqueue.job.deadline_at,
        sa_jobqueue.job.duplicate_of,
        sa_jobqueue.job.schedule_id,
        sa_jobqueue.job.tick_at,
        sa_jobqueue.job.ticks,
        sa_jobqueue.job.concurrency_key,
        sa_jobqueue.job.units,
        sa_jobqueue.job.workflow_id,
        sa_jobqueue.job.blocked_by,
        sa_jobqueue.job.inputs,
        sa_jobqueue.job.extras,
        sa_jobqueue.job.ready_at,
        sa_jobqueue.job.subject_type,
        sa_jobqueue.job.subject_id
),
    progress_gone AS (
    DELETE
    FROM sa_jobqueue.job_progress
    WHERE sa_jobqueue.job_progress.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING sa_jobqueue.job_progress.job_id,
        sa_jobqueue.job_progress.claim_token,
        sa_jobqueue.job_progress.fraction,
        sa_jobqueue.job_progress.written_at,
        sa_jobqueue.job_progress.claims,
        sa_jobqueue.job_progress.message
),
    log_gone AS (
    DELETE
    FROM sa_jobqueue.job_log
    WHERE sa_jobqueue.job_log.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING sa_jobqueue.job_log.job_id,
        sa_jobqueue.job_log.claim_token,
        sa_jobqueue.job_log.part,
        sa_jobqueue.job_log.written_at,
        sa_jobqueue.job_log.attempt,
        sa_jobqueue.job_log.lines
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
    FROM sa_jobqueue.step
    WHERE sa_jobqueue.step.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING sa_jobqueue.step.job_id,
        sa_jobqueue.step.claim_token,
        sa_jobqueue.step.unused_by,
        sa_jobqueue.step.ended_at,
        sa_jobqueue.step.took,
        sa_jobqueue.step.revision,
        sa_jobqueue.step.kind,
        sa_jobqueue.step.name,
        sa_jobqueue.step.digest,
        sa_jobqueue.step.result
),
    recorded AS (
    SELECT step_gone.job_id AS job_id,
        jsonb_agg(jsonb_build_object('name', step_gone.name, 'kind', step_gone.kind, 'revision', step_gone.revision, 'ended_at', step_gone.ended_at, 'took', step_gone.took, 'orphaned', coalesce(gone.status = 'completed' AND step_gone.unused_by = gone.claim_token, false), 'size', CASE WHEN (CASE WHEN (CASE WHEN (pg_column_size(step_gone.result) <= 1000) THEN octet_length(CAST(step_gone.result AS TEXT)) ELSE pg_column_size(step_gone.result) END <= 1000) THEN step_gone.result END IS NULL) THEN CASE WHEN (pg_column_size(step_gone.result) <= 1000) THEN octet_length(CAST(step_gone.result AS TEXT)) ELSE pg_column_size(step_gone.result) END END, 'result', CASE WHEN (CASE WHEN (pg_column_size(step_gone.result) <= 1000) THEN octet_length(CAST(step_gone.result AS TEXT)) ELSE pg_column_size(step_gone.result) END <= 1000) THEN step_gone.result END) ORDER BY step_gone.ended_at, step_gone.name) AS steps
    FROM step_gone
    JOIN gone ON gone.id = step_gone.job_id
    GROUP BY step_gone.job_id
),
    moved AS (INSERT INTO sa_jobqueue.archived_job (id, status, claims, claim_token, run_at, created_at, claimed_at, lease_expires_at, finished_at, purge_at, cancel_requested_at, priority, attempt, max_attempts, rescues, queue, task, args, meta, worker, errors, result, uniqueness, expires_at, deadline_at, duplicate_of, schedule_id, tick_at, ticks, concurrency_key, units, workflow_id, blocked_by, inputs, extras, ready_at, subject_type, subject_id, progress, progress_message, logs, steps) SELECT gone.id AS id, gone.status AS status, gone.claims AS claims, gone.claim_token AS claim_token, gone.run_at AS run_at, gone.created_at AS created_at, gone.claimed_at AS claimed_at, gone.lease_expires_at AS lease_expires_at, least(greatest(coalesce(gone.finished_at, now()), to_timestamp(0)), now()) AS least_1, gone.purge_at AS purge_at, gone.cancel_requested_at AS cancel_requested_at, gone.priority AS priority, gone.attempt AS attempt, gone.max_attempts AS max_attempts, gone.rescues AS rescues, gone.queue AS queue, gone.task AS task, gone.args AS args, gone.meta AS meta, gone.worker AS worker, gone.errors AS errors, gone.result AS result, gone.uniqueness AS uniqueness, gone.expires_at AS expires_at, gone.deadline_at AS deadline_at, gone.duplicate_of AS duplicate_of, gone.schedule_id AS schedule_id, gone.tick_at AS tick_at, gone.ticks AS ticks, gone.concurrency_key AS concurrency_key, gone.units AS units, gone.workflow_id AS workflow_id, gone.blocked_by AS blocked_by, gone.inputs AS inputs, gone.extras AS extras, gone.ready_at AS ready_at, gone.subject_type AS subject_type, gone.subject_id AS subject_id, progress_gone.fraction AS fraction, progress_gone.message AS message, last_lines.lines AS lines, recorded.steps AS steps FROM gone LEFT OUTER JOIN progress_gone ON progress_gone.job_id = gone.id AND progress_gone.claim_token = gone.claim_token LEFT OUTER JOIN last_lines ON last_lines.job_id = gone.id LEFT OUTER JOIN recorded ON recorded.job_id = gone.id WHERE gone.task = ANY (array((
        SELECT sa_jobqueue.archived_task.name
        FROM sa_jobqueue.archived_task
    )
))),
    wait_gone AS (
    DELETE
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.job_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
    RETURNING sa_jobqueue.wait.job_id,
        sa_jobqueue.wait.since,
        sa_jobqueue.wait.until,
        sa_jobqueue.wait.due_at,
        sa_jobqueue.wait.resumed_at,
        sa_jobqueue.wait.is_new,
        sa_jobqueue.wait.step,
        sa_jobqueue.wait.signal,
        sa_jobqueue.wait.question,
        sa_jobqueue.wait.jobs
)
SELECT count(*) AS jobs,
    max(date_part('epoch', gone.purge_at)) AS reached
FROM gone
