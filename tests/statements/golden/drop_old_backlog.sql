DELETE
FROM sa_jobqueue.backlog
WHERE sa_jobqueue.backlog.at < least(now() + %(keep_seconds)s * interval '1 second', (
    SELECT min(backlog_1.at) + interval '1 hour' AS anon_1
    FROM sa_jobqueue.backlog AS backlog_1
))
