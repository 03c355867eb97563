SELECT sa_jobqueue.schedule.id,
    sa_jobqueue.schedule.expression,
    sa_jobqueue.schedule.timezone,
    sa_jobqueue.schedule.counts_from,
    sa_jobqueue.schedule.next_at,
    sa_jobqueue.schedule.paused_at,
    sa_jobqueue.schedule.paused_by,
    now() AS now
FROM sa_jobqueue.schedule
WHERE sa_jobqueue.schedule.name = %(schedule_name)s::VARCHAR
FOR NO KEY UPDATE
