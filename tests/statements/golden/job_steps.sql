SELECT sa_jobqueue.step.name AS name,
    sa_jobqueue.step.kind AS kind,
    sa_jobqueue.step.revision AS revision,
    sa_jobqueue.step.ended_at AS ended_at,
    sa_jobqueue.step.took AS took,
    coalesce(sa_jobqueue.job.status = 'completed' AND sa_jobqueue.step.unused_by = sa_jobqueue.job.claim_token, false) AS orphaned,
    CASE WHEN (CASE WHEN (CASE WHEN (pg_column_size(sa_jobqueue.step.result) <= 1000) THEN octet_length(CAST(sa_jobqueue.step.result AS TEXT)) ELSE pg_column_size(sa_jobqueue.step.result) END <= 1000) THEN sa_jobqueue.step.result END IS NULL) THEN CASE WHEN (pg_column_size(sa_jobqueue.step.result) <= 1000) THEN octet_length(CAST(sa_jobqueue.step.result AS TEXT)) ELSE pg_column_size(sa_jobqueue.step.result) END END AS size,
    CASE WHEN (CASE WHEN (pg_column_size(sa_jobqueue.step.result) <= 1000) THEN octet_length(CAST(sa_jobqueue.step.result AS TEXT)) ELSE pg_column_size(sa_jobqueue.step.result) END <= 1000) THEN sa_jobqueue.step.result END AS result
FROM sa_jobqueue.step
LEFT OUTER JOIN sa_jobqueue.job ON sa_jobqueue.job.id = sa_jobqueue.step.job_id
WHERE sa_jobqueue.step.job_id = %(job_id)s::BIGINT
ORDER BY sa_jobqueue.step.ended_at,
    sa_jobqueue.step.name
