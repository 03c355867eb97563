INSERT INTO sa_jobqueue.job_progress (job_id, claim_token, claims, fraction, message, written_at)
SELECT sa_jobqueue.job.id,
    sa_jobqueue.job.claim_token,
    sa_jobqueue.job.claims,
    note.fraction,
    note.message,
    statement_timestamp() AS statement_timestamp_1
FROM sa_jobqueue.job
JOIN unnest(CAST(%(note_ids)s::VARCHAR AS BIGINT[]), CAST(%(note_tokens)s::VARCHAR AS BIGINT[]), CAST(%(note_fractions)s::VARCHAR AS FLOAT(53)[]), CAST(%(note_messages)s::VARCHAR AS TEXT[]), CAST(%(note_ended)s::VARCHAR AS BOOLEAN[])) AS note(id, token, fraction, message, ended) ON sa_jobqueue.job.id = note.id
WHERE sa_jobqueue.job.id = any(CAST(%(note_ids)s::VARCHAR AS BIGINT[]))
AND (sa_jobqueue.job.id = note.id AND sa_jobqueue.job.claim_token = note.token AND sa_jobqueue.job.status = 'running' OR note.ended AND sa_jobqueue.job.id = note.id AND sa_jobqueue.job.claim_token = note.token)
ORDER BY sa_jobqueue.job.id ON CONFLICT (job_id) DO
UPDATE
SET claim_token = excluded.claim_token,
    fraction = excluded.fraction,
    written_at = excluded.written_at,
    claims = excluded.claims,
    message = excluded.message
WHERE sa_jobqueue.job_progress.claims <= excluded.claims
RETURNING sa_jobqueue.job_progress.job_id,
    sa_jobqueue.job_progress.claim_token
