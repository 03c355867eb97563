SELECT sa_jobqueue.job.workflow_id,
    sa_jobqueue.job.status,
    count(*) AS number
FROM sa_jobqueue.job
WHERE sa_jobqueue.job.workflow_id = any(CAST(%(workflow_ids)s::VARCHAR AS BIGINT[]))
GROUP BY sa_jobqueue.job.workflow_id,
    sa_jobqueue.job.status
