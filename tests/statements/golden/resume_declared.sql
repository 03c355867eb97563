WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.schedule.id AS id
    FROM sa_jobqueue.schedule
    WHERE sa_jobqueue.schedule.name = any(CAST(%(schedule_names)s::VARCHAR AS TEXT[]))
    AND sa_jobqueue.schedule.paused_by = 'undeclared'
    ORDER BY sa_jobqueue.schedule.id
    FOR NO KEY UPDATE OF schedule SKIP LOCKED
)
UPDATE sa_jobqueue.schedule
SET paused_at=NULL
WHERE sa_jobqueue.schedule.id = any(array((
        SELECT locked.id
        FROM locked
    )
))
RETURNING sa_jobqueue.schedule.name
