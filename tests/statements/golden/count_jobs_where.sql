SELECT sa_jobqueue.job.queue,
    count(*) FILTER (WHERE sa_jobqueue.job.status = 'queued') AS queued,
    count(*) FILTER (WHERE sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= now()) AS due,
    EXTRACT(epoch FROM now() - (min(greatest(sa_jobqueue.job.run_at, timestamptz '0002-01-01 00:00:00+00')) FILTER (WHERE sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.run_at <= now()))) AS oldest_due_age,
    count(*) FILTER (WHERE sa_jobqueue.job.status = 'blocked') AS blocked,
    count(*) FILTER (WHERE sa_jobqueue.job.status = 'running') AS running,
    count(*) FILTER (WHERE sa_jobqueue.job.status = 'completed' AND sa_jobqueue.job.finished_at >= now() + %(lately_seconds)s * interval '1 second') AS completed,
    count(*) FILTER (WHERE sa_jobqueue.job.status = 'failed' AND sa_jobqueue.job.finished_at >= now() + %(lately_seconds)s * interval '1 second') AS failed,
    count(*) FILTER (WHERE sa_jobqueue.job.status = 'cancelled' AND sa_jobqueue.job.finished_at >= now() + %(lately_seconds)s * interval '1 second') AS cancelled
FROM sa_jobqueue.job
WHERE sa_jobqueue.job.queue = %(queue_1)s::VARCHAR
GROUP BY sa_jobqueue.job.queue
ORDER BY sa_jobqueue.job.queue
