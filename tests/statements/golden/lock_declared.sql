SELECT sa_jobqueue.schedule.expression,
    sa_jobqueue.schedule.timezone,
    sa_jobqueue.schedule.missed,
    sa_jobqueue.schedule.catch_up,
    sa_jobqueue.schedule.overlap,
    sa_jobqueue.schedule.jitter,
    sa_jobqueue.schedule.pause_after,
    sa_jobqueue.schedule.task,
    sa_jobqueue.schedule.args,
    sa_jobqueue.schedule.queue,
    sa_jobqueue.schedule.priority,
    sa_jobqueue.schedule.max_attempts,
    sa_jobqueue.schedule.meta,
    sa_jobqueue.schedule.uniqueness,
    sa_jobqueue.schedule.expires_in,
    sa_jobqueue.schedule.deadline,
    sa_jobqueue.schedule.concurrency_key,
    sa_jobqueue.schedule.units,
    sa_jobqueue.schedule.extras,
    sa_jobqueue.schedule.declared,
    sa_jobqueue.schedule.definitions
FROM sa_jobqueue.schedule
WHERE sa_jobqueue.schedule.name = %(name_1)s::VARCHAR
AND sa_jobqueue.schedule.declared_at IS NOT NULL
FOR NO KEY UPDATE SKIP LOCKED
