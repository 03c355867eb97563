UPDATE sa_jobqueue.schedule
SET paused_at=now(),
    paused_by='undeclared',
    pause_reason='no worker''s code declares it any more'
WHERE sa_jobqueue.schedule.paused_at IS NULL
AND sa_jobqueue.schedule.declared_at < now() - %(now_1)s
RETURNING sa_jobqueue.schedule.name
