SELECT pg_terminate_backend(pg_stat_activity.pid, CAST(%(param_1)s::BIGINT AS BIGINT)) AS pg_terminate_backend_1
FROM pg_stat_activity
WHERE pg_stat_activity.pid = %(pid_1)s::INTEGER
AND pg_stat_activity.pid != pg_backend_pid()
AND pg_stat_activity.application_name = %(application_name_1)s::VARCHAR
AND pg_has_role(pg_stat_activity.usesysid, %(pg_has_role_1)s::VARCHAR)
