WITH picked AS MATERIALIZED (
    SELECT candidate.id AS id
    FROM unnest(CAST(%(queue_names)s::VARCHAR AS TEXT[]), CAST(%(queue_free)s::VARCHAR AS INTEGER[])) AS queue(name, free)
    JOIN LATERAL (
        SELECT due.id AS id
        FROM unnest(CAST(%(slot_queues)s::VARCHAR AS TEXT[]), CAST(%(slot_levels)s::VARCHAR AS SMALLINT[]), CAST(%(slot_times)s::VARCHAR AS FLOAT(53)[]), CAST(%(slot_ids)s::VARCHAR AS BIGINT[])) AS slot(queue, level, at, id)
        JOIN LATERAL (
            SELECT sa_jobqueue.job.id AS id
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.queue = slot.queue
            AND sa_jobqueue.job.priority = slot.level
            AND sa_jobqueue.job.status = 'queued'
            AND sa_jobqueue.job.concurrency_key IS NULL
            AND sa_jobqueue.job.run_at <= now()
            AND (sa_jobqueue.job.run_at, sa_jobqueue.job.id) > (to_timestamp(slot.at), slot.id)
            AND sa_jobqueue.job.id != all(CAST(%(but_ids)s::VARCHAR AS BIGINT[]))
            ORDER BY sa_jobqueue.job.run_at,
                sa_jobqueue.job.id
            LIMIT queue.free
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS due ON true
        WHERE slot.queue = queue.name
        LIMIT queue.free
    ) AS candidate ON true
    WHERE CASE WHEN ((
            SELECT bit_xor(sa_jobqueue.job_limit.version) AS bit_xor_1
            FROM sa_jobqueue.job_limit
        ) IS NOT DISTINCT
        FROM %(known_limits)s::BIGINT AND NOT (EXISTS (
            SELECT true
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.queue = any(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AND sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        )) AND NOT (EXISTS (
            SELECT true
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.queue = any(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AND sa_jobqueue.job.concurrency_key IS NOT NULL AND sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at) AND sa_jobqueue.job.run_at <= now()
        ))
    ) THEN true ELSE sa_jobqueue.limits_changed((
            SELECT bit_xor(sa_jobqueue.job_limit.version) AS bit_xor_1
            FROM sa_jobqueue.job_limit
        )
    ) END
)
UPDATE sa_jobqueue.job
SET status='running',
    claims=(least(sa_jobqueue.job.claims, 2147483646) + 1),
    claim_token=%(by_token)s::BIGINT,
    claimed_at=now(),
    lease_expires_at=(now() + %(lease_seconds)s * interval '1 second'),
    attempt=(least(sa_jobqueue.job.attempt, 32766) + 1),
    worker=%(by_worker)s::VARCHAR
WHERE sa_jobqueue.job.id = any(array((
        SELECT picked.id
        FROM picked
    )
))
RETURNING sa_jobqueue.job.id,
    sa_jobqueue.job.claim_token,
    sa_jobqueue.job.queue,
    sa_jobqueue.job.task,
    sa_jobqueue.job.priority,
    date_part('epoch', sa_jobqueue.job.run_at) AS run_at,
    sa_jobqueue.job.attempt,
    sa_jobqueue.job.max_attempts,
    sa_jobqueue.job.rescues,
    CASE WHEN (pg_column_size(sa_jobqueue.job.args) <= 8) THEN CAST(sa_jobqueue.job.args AS TEXT) WHEN (pg_column_size(sa_jobqueue.job.args) <= %(inline_limit)s::INTEGER) THEN (
    SELECT CASE WHEN (octet_length(made.text) <= %(inline_limit)s::INTEGER) THEN made.text END AS anon_1
    FROM (
        SELECT CAST(sa_jobqueue.job.args AS TEXT) AS text
        LIMIT ALL OFFSET 0
    ) AS made
) END AS args,
    CASE WHEN (pg_column_size(sa_jobqueue.job.meta) <= 8) THEN CAST(sa_jobqueue.job.meta AS TEXT) WHEN (pg_column_size(sa_jobqueue.job.meta) <= %(inline_limit)s::INTEGER) THEN (
    SELECT CASE WHEN (octet_length(made.text) <= %(inline_limit)s::INTEGER) THEN made.text END AS anon_2
    FROM (
        SELECT CAST(sa_jobqueue.job.meta AS TEXT) AS text
        LIMIT ALL OFFSET 0
    ) AS made
) END AS meta,
    date_part('epoch', sa_jobqueue.job.created_at) AS created_at,
    CASE WHEN (sa_jobqueue.job.uniqueness IS NULL AND sa_jobqueue.job.expires_at IS NULL AND sa_jobqueue.job.deadline_at IS NULL AND sa_jobqueue.job.tick_at IS NULL AND sa_jobqueue.job.workflow_id IS NULL AND sa_jobqueue.job.inputs IS NULL AND sa_jobqueue.job.extras IS NULL AND sa_jobqueue.job.extras IS NULL) THEN NULL WHEN (sa_jobqueue.job.uniqueness IS NULL AND sa_jobqueue.job.expires_at IS NULL AND sa_jobqueue.job.deadline_at IS NULL AND sa_jobqueue.job.tick_at IS NULL AND sa_jobqueue.job.inputs IS NULL AND sa_jobqueue.job.extras IS NULL AND sa_jobqueue.job.extras IS NULL) THEN concat('{"workflow": ', sa_jobqueue.job.workflow_id, '}') ELSE CAST(jsonb_strip_nulls(jsonb_build_object('unique', CASE WHEN (sa_jobqueue.job.uniqueness IS NOT NULL) THEN coalesce(to_jsonb(CASE WHEN ((sa_jobqueue.job.uniqueness ->> 'scope') = 'queued') THEN sa_jobqueue.job.uniqueness ->> 'key' END), 'true'::jsonb) END, 'expires', CASE WHEN (sa_jobqueue.job.attempt <= 1 AND sa_jobqueue.job.rescues = 0) THEN to_jsonb(date_part('epoch', sa_jobqueue.job.expires_at) - date_part('epoch', now())) END, 'deadline', to_jsonb(date_part('epoch', sa_jobqueue.job.deadline_at) - date_part('epoch', now())), 'tick', CASE WHEN (sa_jobqueue.job.tick_at IS NOT NULL) THEN jsonb_build_array(date_part('epoch', sa_jobqueue.job.tick_at), sa_jobqueue.job.ticks) END, 'workflow', sa_jobqueue.job.workflow_id, 'inputs', sa_jobqueue.job.inputs, 'version', CASE WHEN (jsonb_typeof(sa_jobqueue.job.extras -> 'version') = 'number') THEN left(sa_jobqueue.job.extras ->> 'version', 8) WHEN (jsonb_typeof(sa_jobqueue.job.extras -> 'version') IS NOT NULL) THEN '?' END, 'follows', CASE WHEN (sa_jobqueue.job.extras ? 'on_success') THEN 'true'::jsonb END)) AS TEXT) END AS extra
