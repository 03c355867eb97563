SELECT sa_jobqueue.job_limit.owner,
    sa_jobqueue.job_limit.name,
    sa_jobqueue.job_limit.definitions[cardinality(sa_jobqueue.job_limit.definitions)] AS current,
    date_part('epoch', now()) - date_part('epoch', sa_jobqueue.job_limit.declared_at) AS age
FROM sa_jobqueue.job_limit
JOIN unnest(CAST(%(limit_owners)s::VARCHAR AS TEXT[]), CAST(%(limit_names)s::VARCHAR AS TEXT[])) AS given(owner, name) ON sa_jobqueue.job_limit.owner = given.owner
AND sa_jobqueue.job_limit.name = given.name
