SELECT sa_jobqueue.step.name,
    sa_jobqueue.step.kind,
    sa_jobqueue.step.revision,
    sa_jobqueue.step.digest,
    CAST(sa_jobqueue.step.result AS TEXT) AS result,
    sa_jobqueue.step.claim_token = %(token)s::BIGINT AS anon_1
FROM sa_jobqueue.step
WHERE sa_jobqueue.step.job_id = %(of_job)s::BIGINT
UNION ALL
SELECT sa_jobqueue.wait.step,
    'wait',
    1,
    NULL AS anon_2,
    CAST(date_part('epoch', sa_jobqueue.wait.until) - date_part('epoch', clock_timestamp()) AS TEXT) AS anon_3,
    false
FROM sa_jobqueue.wait
WHERE sa_jobqueue.wait.job_id = %(of_job)s::BIGINT
