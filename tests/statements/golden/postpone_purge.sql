UPDATE sa_jobqueue.job
SET purge_at=(now() + %(delay_seconds)s * interval '1 second')
WHERE sa_jobqueue.job.id = %(id_1)s::BIGINT
RETURNING sa_jobqueue.job.id
