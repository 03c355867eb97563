SELECT sa_jobqueue.job_log.attempt,
    to_timestamp(CAST(lines.line ->> 0 AS FLOAT(53))) AS at,
    lines.line ->> 1 AS level,
    lines.line ->> 2 AS message
FROM sa_jobqueue.job_log,
    jsonb_array_elements(sa_jobqueue.job_log.lines)
WITH ORDINALITY AS lines(line, place)
WHERE sa_jobqueue.job_log.job_id = %(job_id)s::BIGINT
ORDER BY min(sa_jobqueue.job_log.written_at) OVER (PARTITION BY sa_jobqueue.job_log.claim_token),
    min(CAST(sa_jobqueue.job_log.lines #>> '{0,0}' AS FLOAT(53))) OVER (PARTITION BY sa_jobqueue.job_log.claim_token),
    sa_jobqueue.job_log.claim_token,
    sa_jobqueue.job_log.part,
    lines.place
