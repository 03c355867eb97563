SELECT sa_jobqueue.schedule.id,
    sa_jobqueue.schedule.name,
    sa_jobqueue.schedule.expression,
    sa_jobqueue.schedule.timezone,
    sa_jobqueue.schedule.missed,
    sa_jobqueue.schedule.catch_up,
    sa_jobqueue.schedule.overlap,
    sa_jobqueue.schedule.jitter,
    sa_jobqueue.schedule.pause_after,
    date_part('epoch', sa_jobqueue.schedule.counts_from) AS counts_from,
    date_part('epoch', sa_jobqueue.schedule.next_at) AS next_at,
    date_part('epoch', sa_jobqueue.schedule.waiting_since) AS waiting_since,
    sa_jobqueue.schedule.error,
    date_part('epoch', now()) AS now
FROM sa_jobqueue.schedule
WHERE sa_jobqueue.schedule.paused_at IS NULL
AND sa_jobqueue.schedule.due_at <= now()
ORDER BY sa_jobqueue.schedule.due_at,
    sa_jobqueue.schedule.id
LIMIT %(page)s::INTEGER
FOR NO KEY UPDATE SKIP LOCKED
