WITH made AS (INSERT INTO sa_jobqueue.job (task, args, queue, priority, max_attempts, run_at, meta, concurrency_key, units) SELECT call.task AS task, CAST(call.args AS JSONB) AS args, call.queue AS queue, call.priority AS priority, call.max_attempts AS max_attempts, coalesce(call.time, now() + call.delay * interval '1 second') AS coalesce_1, CAST(call.meta AS JSONB) AS meta, call.concurrency_key AS concurrency_key, call.units AS units FROM unnest(CAST(%(call_task)s::VARCHAR AS TEXT[]), CAST(%(call_args)s::VARCHAR AS TEXT[]), CAST(%(call_queue)s::VARCHAR AS TEXT[]), CAST(%(call_priority)s::VARCHAR AS SMALLINT[]), CAST(%(call_max_attempts)s::VARCHAR AS SMALLINT[]), CAST(%(call_time)s::VARCHAR AS TIMESTAMP WITH TIME ZONE[]), CAST(%(call_delay)s::VARCHAR AS FLOAT(53)[]), CAST(%(call_meta)s::VARCHAR AS TEXT[]), CAST(%(call_concurrency_key)s::VARCHAR AS TEXT[]), CAST(%(call_units)s::VARCHAR AS SMALLINT[])) AS call(task, args, queue, priority, max_attempts, time, delay, meta, concurrency_key, units) RETURNING sa_jobqueue.job.id)
SELECT numbered.id
FROM (
    SELECT made.id AS id,
        row_number() OVER (ORDER BY made.id) AS number
    FROM made
) AS numbered
JOIN unnest(CAST(%(call_places)s::VARCHAR AS BIGINT[]))
WITH ORDINALITY AS place_of(place, number) ON place_of.number = numbered.number
ORDER BY place_of.place
