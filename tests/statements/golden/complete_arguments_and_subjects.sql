UPDATE sa_jobqueue.job
SET args=CAST(given.args AS JSONB),
    subject_type=given.subject_type,
    subject_id=given.subject_id
FROM unnest(CAST(%(job_ids)s::VARCHAR AS BIGINT[]), CAST(%(job_args)s::VARCHAR AS TEXT[]), CAST(%(subject_types)s::VARCHAR AS TEXT[]), CAST(%(subject_ids)s::VARCHAR AS TEXT[])) AS given(id, args, subject_type, subject_id)
WHERE sa_jobqueue.job.id = given.id
