SELECT sa_jobqueue.job_limit.running,
    sa_jobqueue.job_limit.rate_count,
    sa_jobqueue.job_limit.rate_seconds,
    sa_jobqueue.job_limit.rate_burst,
    sa_jobqueue.job_limit.rates,
    sa_jobqueue.job_limit.key_running,
    sa_jobqueue.job_limit.key_rate_count,
    sa_jobqueue.job_limit.key_rate_seconds,
    sa_jobqueue.job_limit.key_rate_burst,
    sa_jobqueue.job_limit.key_rates,
    sa_jobqueue.job_limit.strict,
    sa_jobqueue.job_limit.when_full,
    sa_jobqueue.job_limit.max_waiting,
    sa_jobqueue.job_limit.share,
    sa_jobqueue.job_limit.per,
    sa_jobqueue.job_limit.held,
    sa_jobqueue.job_limit.declared,
    sa_jobqueue.job_limit.definitions
FROM sa_jobqueue.job_limit
WHERE sa_jobqueue.job_limit.owner = %(of_owner)s::VARCHAR
AND sa_jobqueue.job_limit.name = %(of_name)s::VARCHAR
FOR NO KEY UPDATE SKIP LOCKED
