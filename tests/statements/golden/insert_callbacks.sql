INSERT INTO sa_jobqueue.workflow_callback (workflow_id, number, event, task, args, queue, priority, max_attempts, meta, delay, concurrency_key, units, subject_type, subject_id, extras)
SELECT %(workflow)s::BIGINT AS anon_1,
    row_number() OVER () AS anon_2,
    CAST(callback.event AS TEXT) AS event,
    CAST(callback.task AS TEXT) AS task,
    CAST(callback.args AS JSONB) AS args,
    CAST(callback.queue AS TEXT) AS queue,
    CAST(callback.priority AS SMALLINT) AS priority,
    CAST(callback.max_attempts AS SMALLINT) AS max_attempts,
    CAST(callback.meta AS JSONB) AS meta,
    CAST(callback.delay AS DOUBLE PRECISION) AS delay,
    CAST(callback.concurrency_key AS TEXT) COLLATE "C" AS concurrency_key,
    CAST(callback.units AS SMALLINT) AS units,
    CAST(callback.subject_type AS TEXT) COLLATE "C" AS subject_type,
    CAST(callback.subject_id AS TEXT) COLLATE "C" AS subject_id,
    CAST(callback.extras AS JSONB) AS extras
FROM unnest(CAST(%(callback_event)s::VARCHAR AS TEXT[]), CAST(%(callback_task)s::VARCHAR AS TEXT[]), CAST(%(callback_args)s::VARCHAR AS TEXT[]), CAST(%(callback_queue)s::VARCHAR AS TEXT[]), CAST(%(callback_priority)s::VARCHAR AS SMALLINT[]), CAST(%(callback_max_attempts)s::VARCHAR AS SMALLINT[]), CAST(%(callback_meta)s::VARCHAR AS TEXT[]), CAST(%(callback_delay)s::VARCHAR AS TEXT[]), CAST(%(callback_concurrency_key)s::VARCHAR AS TEXT[]), CAST(%(callback_units)s::VARCHAR AS SMALLINT[]), CAST(%(callback_subject_type)s::VARCHAR AS TEXT[]), CAST(%(callback_subject_id)s::VARCHAR AS TEXT[]), CAST(%(callback_extras)s::VARCHAR AS TEXT[])) AS callback(event, task, args, queue, priority, max_attempts, meta, delay, concurrency_key, units, subject_type, subject_id, extras)
