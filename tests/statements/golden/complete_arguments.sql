UPDATE sa_jobqueue.job
SET args=CAST(given.args AS JSONB)
FROM unnest(CAST(%(job_ids)s::VARCHAR AS BIGINT[]), CAST(%(job_args)s::VARCHAR AS TEXT[])) AS given(id, args)
WHERE sa_jobqueue.job.id = given.id
