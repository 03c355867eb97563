SELECT sa_jobqueue.job.id
FROM sa_jobqueue.job
WHERE (sa_jobqueue.job.subject_type, sa_jobqueue.job.subject_id) = (%(param_1)s::VARCHAR COLLATE "C", %(param_2)s::VARCHAR COLLATE "C")
