SELECT sa_jobqueue.job.workflow_id,
    sa_jobqueue.job.status,
    count(*) AS number
FROM sa_jobqueue.job,
    unnest(CAST(%(workflow_ids)s::VARCHAR AS BIGINT[])) AS flow(id)
WHERE sa_jobqueue.job.workflow_id = flow.id
GROUP BY sa_jobqueue.job.workflow_id,
    sa_jobqueue.job.status
