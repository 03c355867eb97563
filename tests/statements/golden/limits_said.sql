SELECT sa_jobqueue.job_limit.owner,
    sa_jobqueue.job_limit.name,
    sa_jobqueue.job_limit.running IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.rate_count IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.rate_seconds IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.rate_burst IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.rates IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.key_running IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.key_rate_count IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.key_rate_seconds IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.key_rate_burst IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.key_rates IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.strict IS DISTINCT
FROM false
OR sa_jobqueue.job_limit.when_full IS DISTINCT
FROM %(when_full_1)s::VARCHAR
OR sa_jobqueue.job_limit.max_waiting IS DISTINCT
FROM NULL
OR sa_jobqueue.job_limit.share IS DISTINCT
FROM %(share_1)s::VARCHAR
OR sa_jobqueue.job_limit.per IS DISTINCT
FROM NULL AS limited,
    sa_jobqueue.job_limit.held,
    sa_jobqueue.job_limit.running,
    date_part('epoch', now() - sa_jobqueue.job_limit.paused_at) AS paused,
    sa_jobqueue.job_limit.pause_reason,
    (
    SELECT count(*) AS count_1
    FROM sa_jobqueue.job_key
    WHERE sa_jobqueue.job_limit.owner = 'task'
    AND sa_jobqueue.job_key.name = sa_jobqueue.job_limit.name
    AND sa_jobqueue.job_key.broken_until IS NOT NULL
) + num_nonnulls(sa_jobqueue.job_limit.broken_until) AS broken
FROM sa_jobqueue.job_limit
ORDER BY sa_jobqueue.job_limit.owner,
    sa_jobqueue.job_limit.name
LIMIT %(limits)s::INTEGER
