SELECT flow.id AS workflow_id,
    "some".status,
    count(*) AS number
FROM unnest(CAST(%(workflow_ids)s::VARCHAR AS BIGINT[])) AS flow(id)
JOIN LATERAL (
    SELECT sa_jobqueue.job.status AS status
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.workflow_id = flow.id
    ORDER BY sa_jobqueue.job.id
    LIMIT %(cap)s::INTEGER
) AS "some" ON true
GROUP BY flow.id,
    "some".status
