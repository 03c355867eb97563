SELECT sa_jobqueue.limit_queues(CAST(%(limited_queues)s::VARCHAR AS TEXT[])) AS limit_queues_1
