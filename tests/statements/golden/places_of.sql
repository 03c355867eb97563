SELECT sa_jobqueue.worker.id,
    sa_jobqueue.worker.host,
    sa_jobqueue.worker.pid
FROM sa_jobqueue.worker
WHERE sa_jobqueue.worker.id = any(CAST(%(worker_ids)s::VARCHAR AS UUID[]))
