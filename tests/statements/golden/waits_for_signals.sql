SELECT sa_jobqueue.wait.job_id,
    sa_jobqueue.wait.signal,
    sa_jobqueue.wait.step,
    sa_jobqueue.wait.question,
    sa_jobqueue.job.task,
    sa_jobqueue.job.queue,
    CASE WHEN (sa_jobqueue.wait.since < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (sa_jobqueue.wait.since > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE sa_jobqueue.wait.since END AS since,
    CASE WHEN (sa_jobqueue.wait.until < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (sa_jobqueue.wait.until > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE sa_jobqueue.wait.until END AS until,
    date_part('epoch', now() - sa_jobqueue.wait.since) AS seconds
FROM sa_jobqueue.wait,
    sa_jobqueue.job
WHERE sa_jobqueue.wait.resumed_at IS NULL
AND sa_jobqueue.wait.signal > ''
AND sa_jobqueue.job.status = 'blocked'
AND sa_jobqueue.job.id = sa_jobqueue.wait.job_id
ORDER BY sa_jobqueue.wait.since
LIMIT %(most)s::INTEGER
