SELECT sa_jobqueue.permits_freed(%(limit_opener)s::INTEGER) AS permits_freed_1
