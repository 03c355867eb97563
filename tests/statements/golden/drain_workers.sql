UPDATE sa_jobqueue.worker
SET drain_requested_at=now()
WHERE sa_jobqueue.worker.id IN (
    SELECT sa_jobqueue.worker.id
    FROM sa_jobqueue.worker
    WHERE sa_jobqueue.worker.drain_requested_at IS NULL
    AND sa_jobqueue.worker.host = %(host_1)s::VARCHAR
    ORDER BY sa_jobqueue.worker.id
    FOR UPDATE
)
RETURNING sa_jobqueue.worker.id
