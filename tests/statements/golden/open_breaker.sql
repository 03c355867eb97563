SELECT sa_jobqueue.set_breaker(%(of_name)s::VARCHAR, %(of_key)s::VARCHAR, %(rest)s, coalesce(%(who)s::VARCHAR, session_user::text)) AS changed
