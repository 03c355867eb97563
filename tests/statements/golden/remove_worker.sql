DELETE
FROM sa_jobqueue.worker
WHERE sa_jobqueue.worker.id = %(id_1)s::UUID
