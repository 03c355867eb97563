WITH locked AS MATERIALIZED (
    SELECT sa_jobqueue.schedule.id AS id
    FROM sa_jobqueue.schedule
    WHERE sa_jobqueue.schedule.name = %(name_1)s::VARCHAR
    ORDER BY sa_jobqueue.schedule.id
    FOR UPDATE OF schedule
)
DELETE
FROM sa_jobqueue.schedule
WHERE sa_jobqueue.schedule.id = any(array((
        SELECT locked.id
        FROM locked
    )
))
RETURNING sa_jobqueue.schedule.name
