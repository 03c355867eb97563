WITH made AS (INSERT INTO sa_jobqueue.job (task, args, queue, priority, max_attempts, run_at, meta, subject_type, subject_id) SELECT call.task AS task, CAST(call.args AS JSONB) AS args, call.queue AS queue, call.priority AS priority, call.max_attempts AS max_attempts, coalesce(call.time, now() + call.delay * interval '1 second') AS coalesce_1, CAST(call.meta AS JSONB) AS meta, call.subject_type AS subject_type, call.subject_id AS subject_id FROM unnest(CAST(%(call_task)s::VARCHAR AS TEXT[]), CAST(%(call_args)s::VARCHAR AS TEXT[]), CAST(%(call_queue)s::VARCHAR AS TEXT[]), CAST(%(call_priority)s::VARCHAR AS SMALLINT[]), CAST(%(call_max_attempts)s::VARCHAR AS SMALLINT[]), CAST(%(call_time)s::VARCHAR AS TIMESTAMP WITH TIME ZONE[]), CAST(%(call_delay)s::VARCHAR AS FLOAT(53)[]), CAST(%(call_meta)s::VARCHAR AS TEXT[]), CAST(%(call_subject_type)s::VARCHAR AS TEXT[]), CAST(%(call_subject_id)s::VARCHAR AS TEXT[])) AS call(task, args, queue, priority, max_attempts, time, delay, meta, subject_type, subject_id) RETURNING sa_jobqueue.job.id)
SELECT numbered.id
FROM (
    SELECT made.id AS id,
        row_number() OVER (ORDER BY made.id) AS number
    FROM made
) AS numbered
JOIN unnest(CAST(%(call_places)s::VARCHAR AS BIGINT[]))
WITH ORDINALITY AS place_of(place, number) ON place_of.number = numbered.number
ORDER BY place_of.place
