INSERT INTO sa_jobqueue.worker (id, host, pid, queues, concurrency, version) VALUES (%(id)s::UUID, %(host)s::VARCHAR, %(pid)s::INTEGER, %(queues)s::TEXT[], %(concurrency)s::INTEGER, %(version)s::VARCHAR) ON CONFLICT (id) DO
UPDATE
SET seen_at = now()
RETURNING (
    SELECT date_part('epoch', sa_jobqueue.schedule.due_at) - date_part('epoch', clock_timestamp()) AS anon_2
    FROM sa_jobqueue.schedule
    WHERE sa_jobqueue.schedule.paused_at IS NULL
    ORDER BY sa_jobqueue.schedule.due_at
    LIMIT 1
) AS anon_1
