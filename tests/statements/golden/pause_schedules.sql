WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.schedule.id AS id
    FROM sa_jobqueue.schedule
    WHERE sa_jobqueue.schedule.name = %(name_1)s::VARCHAR
    ORDER BY sa_jobqueue.schedule.id
    FOR NO KEY UPDATE OF schedule
)
UPDATE sa_jobqueue.schedule
SET paused_at=coalesce(sa_jobqueue.schedule.paused_at, now()),
    paused_by='operator',
    pause_reason=%(reason)s::VARCHAR
WHERE sa_jobqueue.schedule.id = any(array((
        SELECT locked.id
        FROM locked
    )
))
RETURNING sa_jobqueue.schedule.name
