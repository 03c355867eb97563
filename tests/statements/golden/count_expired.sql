SELECT count(*) AS count_1
FROM sa_jobqueue.job
WHERE sa_jobqueue.job.status = 'running'
AND (sa_jobqueue.job.lease_expires_at IS NULL OR sa_jobqueue.job.lease_expires_at <= now())
