SELECT date_part('epoch', sa_jobqueue.schedule.due_at) - date_part('epoch', clock_timestamp()) AS anon_1
FROM sa_jobqueue.schedule
WHERE sa_jobqueue.schedule.paused_at IS NULL
ORDER BY sa_jobqueue.schedule.due_at
LIMIT 1
