INSERT INTO sa_jobqueue.worker (id, host, pid, queues, concurrency, version) VALUES (%(id)s::UUID, %(host)s::VARCHAR, %(pid)s::INTEGER, %(queues)s::TEXT[], %(concurrency)s::INTEGER, %(version)s::VARCHAR) ON CONFLICT (id) DO
UPDATE
SET seen_at = now()
