WITH page AS MATERIALIZED (
    SELECT sa_jobqueue.step.job_id AS job_id
    FROM sa_jobqueue.step
    WHERE sa_jobqueue.step.job_id > %(after_id)s::BIGINT
    ORDER BY sa_jobqueue.step.job_id
    LIMIT %(page)s::INTEGER
),
    gone AS (
    DELETE
    FROM sa_jobqueue.step
    WHERE sa_jobqueue.step.job_id = any(array((
            SELECT page.job_id
            FROM page
        )
    ))
    AND NOT (EXISTS (
        SELECT 1
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.id = sa_jobqueue.step.job_id
        AND sa_jobqueue.job.created_at <= sa_jobqueue.step.ended_at
    ))
    RETURNING sa_jobqueue.step.job_id
)
SELECT max(page.job_id) AS last,
    count(*) AS looked_at,
    (
    SELECT count(*) AS count_1
    FROM gone
) AS gone
FROM page
