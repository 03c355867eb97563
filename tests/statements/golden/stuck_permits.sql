WITH held AS MATERIALIZED (
    SELECT sa_jobqueue.job.id AS id,
        sa_jobqueue.job.queue AS queue,
        sa_jobqueue.job.task AS task,
        sa_jobqueue.job.concurrency_key AS key,
        sa_jobqueue.job.lease_expires_at IS NULL
    OR sa_jobqueue.job.lease_expires_at <= now() AS expired,
        coalesce(date_part('epoch', now() - sa_jobqueue.job.claimed_at), 0.0) AS seconds
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.status = 'running'
    ORDER BY sa_jobqueue.job.id
    LIMIT %(cap)s::INTEGER
)
SELECT used.owner,
    used.name,
    used.key,
    CASE WHEN (used.key IS NULL) THEN sa_jobqueue.job_limit.running ELSE coalesce(sa_jobqueue.job_key.running, sa_jobqueue.job_limit.key_running) END AS "limit",
    used.used,
    used.expired,
    used.seconds AS seconds,
    used.job_ids
FROM (
    SELECT scopes.owner AS owner,
        scopes.name AS name,
        scopes.key AS key,
        count(*) AS used,
        bool_and(scopes.expired) AS expired,
        min(scopes.seconds) AS seconds,
        trim_array(array_agg(scopes.id ORDER BY scopes.id), CAST(greatest(count(*) - 3, 0) AS INTEGER)) AS job_ids
    FROM (
        SELECT 'queue' AS owner,
            held.queue AS name,
            CAST(NULL AS TEXT) AS key,
            held.id AS id,
            held.expired AS expired,
            held.seconds AS seconds
        FROM held
        UNION ALL
        SELECT 'task' AS owner,
            held.task AS name,
            CAST(NULL AS TEXT) AS key,
            held.id AS id,
            held.expired AS expired,
            held.seconds AS seconds
        FROM held
        UNION ALL
        SELECT 'queue' AS owner,
            held.queue AS name,
            CAST(CASE WHEN (held.key >= chr(2)) THEN held.key END AS TEXT) AS key,
            held.id AS id,
            held.expired AS expired,
            held.seconds AS seconds
        FROM held
        WHERE CASE WHEN (held.key >= chr(2)) THEN held.key END IS NOT NULL
        UNION ALL
        SELECT 'task' AS owner,
            held.task AS name,
            CAST(CASE WHEN (held.key >= chr(2)) THEN held.key END AS TEXT) AS key,
            held.id AS id,
            held.expired AS expired,
            held.seconds AS seconds
        FROM held
        WHERE CASE WHEN (held.key >= chr(2)) THEN held.key END IS NOT NULL
    ) AS scopes
    GROUP BY scopes.owner,
        scopes.name,
        scopes.key HAVING bool_and(scopes.expired OR scopes.seconds >= %(held_seconds)s)
) AS used
LEFT OUTER JOIN sa_jobqueue.job_limit ON sa_jobqueue.job_limit.owner = used.owner
AND sa_jobqueue.job_limit.name = used.name
LEFT OUTER JOIN sa_jobqueue.job_key ON sa_jobqueue.job_key.owner = used.owner
AND sa_jobqueue.job_key.name = used.name
AND sa_jobqueue.job_key.key = used.key
WHERE used.used >= CASE WHEN (used.key IS NULL) THEN sa_jobqueue.job_limit.running ELSE coalesce(sa_jobqueue.job_key.running, sa_jobqueue.job_limit.key_running) END
ORDER BY NOT used.expired,
    used.owner,
    used.name,
    used.key NULLS FIRST
LIMIT %(most)s::INTEGER
