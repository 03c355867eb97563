WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job_limit.owner AS owner,
        sa_jobqueue.job_limit.name AS name
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.declared_at < now() - %(now_1)s
    AND NOT sa_jobqueue.job_limit.held
    AND sa_jobqueue.job_limit.paused_at IS NULL
    AND sa_jobqueue.job_limit.broken_until IS NULL
    ORDER BY sa_jobqueue.job_limit.owner,
        sa_jobqueue.job_limit.name
    FOR UPDATE SKIP LOCKED
)
DELETE
FROM sa_jobqueue.job_limit
WHERE (sa_jobqueue.job_limit.owner, sa_jobqueue.job_limit.name) IN (
    SELECT locked.owner,
        locked.name
    FROM locked
)
RETURNING sa_jobqueue.job_limit.owner,
    sa_jobqueue.job_limit.name
