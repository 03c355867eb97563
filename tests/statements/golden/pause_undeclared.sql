WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.schedule.id AS id
    FROM sa_jobqueue.schedule
    WHERE sa_jobqueue.schedule.paused_at IS NULL
    AND sa_jobqueue.schedule.declared_at < now() - %(now_1)s
    ORDER BY sa_jobqueue.schedule.id
    FOR NO KEY UPDATE OF schedule SKIP LOCKED
)
UPDATE sa_jobqueue.schedule
SET paused_at=now(),
    paused_by='undeclared',
    pause_reason='no worker''s code declares it any more'
WHERE sa_jobqueue.schedule.id = any(array((
        SELECT locked.id
        FROM locked
    )
))
RETURNING sa_jobqueue.schedule.name
