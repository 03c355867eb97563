SELECT claim.id,
    sa_jobqueue.job.status,
    sa_jobqueue.job.claim_token IS NOT DISTINCT
FROM claim.token AS last
FROM unnest(CAST(%(claim_ids)s::VARCHAR AS BIGINT[]), CAST(%(claim_tokens)s::VARCHAR AS BIGINT[])) AS claim(id, token)
LEFT OUTER JOIN sa_jobqueue.job ON sa_jobqueue.job.id = claim.id
