SELECT sa_jobqueue.job_limit.owner,
    sa_jobqueue.job_limit.name,
    sa_jobqueue.job_limit.running IS NOT NULL
OR sa_jobqueue.job_limit.rate_count IS NOT NULL
OR sa_jobqueue.job_limit.rate_seconds IS NOT NULL
OR sa_jobqueue.job_limit.rate_burst IS NOT NULL
OR sa_jobqueue.job_limit.key_running IS NOT NULL
OR sa_jobqueue.job_limit.key_rate_count IS NOT NULL
OR sa_jobqueue.job_limit.key_rate_seconds IS NOT NULL
OR sa_jobqueue.job_limit.key_rate_burst IS NOT NULL
OR sa_jobqueue.job_limit.max_waiting IS NOT NULL
OR sa_jobqueue.job_limit.strict
OR sa_jobqueue.job_limit.when_full != 'wait' AS limited,
    sa_jobqueue.job_limit.held,
    sa_jobqueue.job_limit.running,
    date_part('epoch', now() - sa_jobqueue.job_limit.paused_at) AS paused,
    sa_jobqueue.job_limit.pause_reason
FROM sa_jobqueue.job_limit
ORDER BY sa_jobqueue.job_limit.owner,
    sa_jobqueue.job_limit.name
LIMIT %(limits)s::INTEGER
