INSERT INTO sa_jobqueue.limit_state (owner, name, key, blocked_until)
SELECT 'queue',
    "of".name,
    "of".key,
    statement_timestamp() + "of".seconds * interval '1 second' AS anon_1
FROM (
    SELECT sa_jobqueue.job.queue AS name,
        CASE WHEN (sa_jobqueue.job.concurrency_key >= chr(2)) THEN sa_jobqueue.job.concurrency_key ELSE '' END AS key,
        max(said.seconds) AS seconds
    FROM sa_jobqueue.job
    JOIN unnest(CAST(%(blocking_ids)s::VARCHAR AS BIGINT[]), CAST(%(blocking_seconds)s::VARCHAR AS FLOAT(53)[])) AS said(id, seconds) ON sa_jobqueue.job.id = said.id
    WHERE sa_jobqueue.job.id = any(CAST(%(blocking_ids)s::VARCHAR AS BIGINT[]))
    GROUP BY sa_jobqueue.job.queue,
        CASE WHEN (sa_jobqueue.job.concurrency_key >= chr(2)) THEN sa_jobqueue.job.concurrency_key ELSE '' END
) AS "of"
ORDER BY "of".name COLLATE "C",
    "of".key COLLATE "default" ON CONFLICT (owner, name, key) DO
UPDATE
SET blocked_until = greatest(sa_jobqueue.limit_state.blocked_until, excluded.blocked_until)
RETURNING sa_jobqueue.limit_state.name,
    sa_jobqueue.limit_state.key
