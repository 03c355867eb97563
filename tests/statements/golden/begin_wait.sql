INSERT INTO sa_jobqueue.wait (job_id, step, signal, until, due_at, question, jobs)
SELECT %(of_job)s::BIGINT AS anon_1,
    %(step)s::VARCHAR AS anon_2,
    %(signal)s::VARCHAR AS anon_3,
    coalesce(%(at)s::TIMESTAMP WITH TIME ZONE, now() + %(seconds)s * interval '1 second') AS coalesce_1,
    CASE WHEN (CAST(%(jobs)s::VARCHAR AS BIGINT[]) IS NOT NULL) THEN now() ELSE coalesce(%(at)s::TIMESTAMP WITH TIME ZONE, now() + %(seconds)s * interval '1 second') END AS anon_4,
    CAST(%(question)s::VARCHAR AS JSONB) AS anon_5,
    CAST(%(jobs)s::VARCHAR AS BIGINT[]) AS anon_6 ON CONFLICT (job_id) DO
UPDATE
SET since = CASE WHEN (sa_jobqueue.wait.step = excluded.step) THEN sa_jobqueue.wait.since ELSE excluded.since END,
    until = CASE WHEN (sa_jobqueue.wait.step = excluded.step) THEN sa_jobqueue.wait.until ELSE excluded.until END,
    due_at = CASE WHEN (sa_jobqueue.wait.step = excluded.step AND CAST(%(jobs)s::VARCHAR AS BIGINT[]) IS NULL) THEN sa_jobqueue.wait.until ELSE excluded.due_at END,
    resumed_at = NULL,
    is_new = true,
    step = excluded.step,
    signal = excluded.signal,
    question = excluded.question,
    jobs = excluded.jobs
