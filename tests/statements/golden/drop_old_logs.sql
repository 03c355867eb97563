WITH claims AS (
    SELECT sa_jobqueue.job_log.job_id AS job_id,
        sa_jobqueue.job_log.claim_token AS claim_token,
        row_number() OVER (PARTITION BY sa_jobqueue.job_log.job_id ORDER BY max(sa_jobqueue.job_log.written_at) DESC, max(CAST(sa_jobqueue.job_log.lines #>> '{0,0}' AS FLOAT(53))) DESC) AS place
    FROM sa_jobqueue.job_log
    WHERE sa_jobqueue.job_log.job_id = any(CAST(%(log_ids)s::VARCHAR AS BIGINT[]))
    GROUP BY sa_jobqueue.job_log.job_id,
        sa_jobqueue.job_log.claim_token
)
DELETE
FROM sa_jobqueue.job_log
USING claims
WHERE sa_jobqueue.job_log.job_id = claims.job_id
AND sa_jobqueue.job_log.claim_token = claims.claim_token
AND claims.place > 20
