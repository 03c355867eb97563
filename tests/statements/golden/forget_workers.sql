DELETE
FROM sa_jobqueue.worker
WHERE sa_jobqueue.worker.id IN (
    SELECT sa_jobqueue.worker.id
    FROM sa_jobqueue.worker
    WHERE sa_jobqueue.worker.seen_at < now() - %(now_1)s
    FOR UPDATE SKIP LOCKED
)
