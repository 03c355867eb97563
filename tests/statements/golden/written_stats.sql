SELECT sa_jobqueue.worker.stats_written
FROM sa_jobqueue.worker
WHERE sa_jobqueue.worker.id = %(id_1)s::UUID
