WITH written AS (
    UPDATE sa_jobqueue.job
    SET status='completed',
        lease_expires_at=NULL,
        finished_at=statement_timestamp(),
        purge_at=(statement_timestamp() + %(done_retain)s * interval '1 second'),
        result=NULL
    WHERE sa_jobqueue.job.id = %(done_id)s::BIGINT
    AND sa_jobqueue.job.claim_token = %(done_token)s::BIGINT
    AND sa_jobqueue.job.status = 'running'
    RETURNING CASE WHEN ((
            SELECT sa_jobqueue.any_awaited() AS any_awaited_1
        ) AND sa_jobqueue.job.finished_at IS NOT NULL
    ) THEN (sa_jobqueue.tell_ended(ARRAY[sa_jobqueue.job.id]))[1] ELSE sa_jobqueue.job.id END AS id,
        sa_jobqueue.job.workflow_id
),
    events AS (INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id, completed) SELECT written.workflow_id AS workflow_id, written.id AS id, true FROM written WHERE written.workflow_id IS NOT NULL)
SELECT written.id
FROM written
