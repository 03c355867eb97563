SELECT candidate.id,
    queue.name
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
