WITH page AS MATERIALIZED (
    SELECT sa_jobqueue.wait.job_id AS job_id
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.job_id > %(after_id)s::BIGINT
    ORDER BY sa_jobqueue.wait.job_id
    LIMIT %(page)s::INTEGER
),
    gone AS (
    DELETE
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.job_id = any(array((
            SELECT page.job_id
            FROM page
        )
    ))
    AND NOT (EXISTS (
        SELECT 1
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.id = sa_jobqueue.wait.job_id
        AND sa_jobqueue.job.created_at <= sa_jobqueue.wait.since
        AND sa_jobqueue.job.status IN ('queued', 'blocked', 'running')
    ))
    AND NOT sa_jobqueue.wait.is_new
    RETURNING sa_jobqueue.wait.job_id
)
SELECT max(page.job_id) AS last,
    count(*) AS looked_at,
    (
    SELECT count(*) AS count_1
    FROM gone
) AS gone
FROM page
