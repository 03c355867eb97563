INSERT INTO sa_jobqueue.job (task, args, queue, priority, max_attempts, run_at, meta)
SELECT call.task,
    CAST(call.args AS JSONB) AS args,
    call.queue,
    call.priority,
    call.max_attempts,
    coalesce(call.time, now() + call.delay * interval '1 second') AS coalesce_1,
    CAST(call.meta AS JSONB) AS meta
FROM unnest(CAST(%(call_task)s::VARCHAR AS TEXT[]), CAST(%(call_args)s::VARCHAR AS TEXT[]), CAST(%(call_queue)s::VARCHAR AS TEXT[]), CAST(%(call_priority)s::VARCHAR AS SMALLINT[]), CAST(%(call_max_attempts)s::VARCHAR AS SMALLINT[]), CAST(%(call_time)s::VARCHAR AS TIMESTAMP WITH TIME ZONE[]), CAST(%(call_delay)s::VARCHAR AS FLOAT(53)[]), CAST(%(call_meta)s::VARCHAR AS TEXT[])) AS call(task, args, queue, priority, max_attempts, time, delay, meta)
RETURNING sa_jobqueue.job.id
