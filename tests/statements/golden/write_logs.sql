WITH "over" AS (
    DELETE
    FROM sa_jobqueue.job_log
    USING unnest(CAST(%(log_ids)s::VARCHAR AS BIGINT[]), CAST(%(log_tokens)s::VARCHAR AS BIGINT[]), CAST(%(log_parts)s::VARCHAR AS INTEGER[]), CAST(%(log_first)s::VARCHAR AS INTEGER[]), CAST(%(log_attempts)s::VARCHAR AS SMALLINT[]), CAST(%(log_lines)s::VARCHAR AS TEXT[]), CAST(%(log_ended)s::VARCHAR AS BOOLEAN[])) AS part(id, token, part, first, attempt, lines, ended)
    WHERE sa_jobqueue.job_log.job_id = part.id
    AND sa_jobqueue.job_log.claim_token = part.token
    AND sa_jobqueue.job_log.part < part.first
)
INSERT INTO sa_jobqueue.job_log (job_id, claim_token, part, attempt, lines, written_at)
SELECT sa_jobqueue.job.id,
    part.token,
    part.part,
    part.attempt,
    CAST(part.lines AS JSONB) AS lines,
    statement_timestamp() AS statement_timestamp_1
FROM sa_jobqueue.job
JOIN unnest(CAST(%(log_ids)s::VARCHAR AS BIGINT[]), CAST(%(log_tokens)s::VARCHAR AS BIGINT[]), CAST(%(log_parts)s::VARCHAR AS INTEGER[]), CAST(%(log_first)s::VARCHAR AS INTEGER[]), CAST(%(log_attempts)s::VARCHAR AS SMALLINT[]), CAST(%(log_lines)s::VARCHAR AS TEXT[]), CAST(%(log_ended)s::VARCHAR AS BOOLEAN[])) AS part(id, token, part, first, attempt, lines, ended) ON sa_jobqueue.job.id = part.id
WHERE sa_jobqueue.job.id = any(CAST(%(log_ids)s::VARCHAR AS BIGINT[]))
AND (sa_jobqueue.job.id = part.id AND sa_jobqueue.job.claim_token = part.token AND sa_jobqueue.job.status = 'running' OR part.ended)
ORDER BY sa_jobqueue.job.id ON CONFLICT (job_id, claim_token, part) DO
UPDATE
SET written_at = excluded.written_at,
    lines = excluded.lines
RETURNING sa_jobqueue.job_log.job_id,
    sa_jobqueue.job_log.claim_token
