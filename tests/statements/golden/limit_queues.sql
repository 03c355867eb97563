INSERT INTO sa_jobqueue.job_limit (owner, name)
SELECT 'queue',
    given.name
FROM unnest(CAST(%(limited_queues)s::VARCHAR AS TEXT[])) AS given(name)
WHERE NOT (EXISTS (
    SELECT sa_jobqueue.job_limit.name
    FROM sa_jobqueue.job_limit
    WHERE sa_jobqueue.job_limit.owner = 'queue'
    AND sa_jobqueue.job_limit.name = given.name
))
ORDER BY given.name ON CONFLICT (owner, name) DO NOTHING
