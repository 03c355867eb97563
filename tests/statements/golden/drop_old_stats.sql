WITH "old" AS MATERIALIZED (
    SELECT sa_jobqueue.stat.seconds AS seconds,
        sa_jobqueue.stat.at AS at,
        sa_jobqueue.stat.queue AS queue,
        sa_jobqueue.stat.task AS task
    FROM sa_jobqueue.stat
    WHERE sa_jobqueue.stat.seconds = 3600
    AND sa_jobqueue.stat.at < now() + %(keep_seconds)s * interval '1 second'
    ORDER BY sa_jobqueue.stat.seconds,
        sa_jobqueue.stat.at,
        sa_jobqueue.stat.queue,
        sa_jobqueue.stat.task
    LIMIT %(page)s::INTEGER
    FOR UPDATE SKIP LOCKED
)
DELETE
FROM sa_jobqueue.stat
USING "old"
WHERE sa_jobqueue.stat.seconds = "old".seconds
AND sa_jobqueue.stat.at = "old".at
AND sa_jobqueue.stat.queue = "old".queue
AND sa_jobqueue.stat.task = "old".task
