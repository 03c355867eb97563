WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.job_limit.owner AS owner,
        sa_jobqueue.job_limit.name AS name
    FROM sa_jobqueue.job_limit
    WHERE (sa_jobqueue.job_limit.owner, sa_jobqueue.job_limit.name) IN (
        SELECT given.owner,
            given.name
        FROM unnest(CAST(%(limit_owners)s::VARCHAR AS TEXT[]), CAST(%(limit_names)s::VARCHAR AS TEXT[])) AS given(owner, name)
    )
    ORDER BY sa_jobqueue.job_limit.owner,
        sa_jobqueue.job_limit.name
    FOR UPDATE SKIP LOCKED
)
UPDATE sa_jobqueue.job_limit
SET declared_at=now()
WHERE (sa_jobqueue.job_limit.owner, sa_jobqueue.job_limit.name) IN (
    SELECT locked.owner,
        locked.name
    FROM locked
)
