WITH this AS (
    SELECT sa_jobqueue.schedule.id AS id,
        sa_jobqueue.schedule.error AS error
    FROM sa_jobqueue.schedule
    WHERE sa_jobqueue.schedule.id = %(this_id)s::BIGINT
    FOR NO KEY UPDATE
)
UPDATE sa_jobqueue.schedule
SET due_at=(now() + %(delay_seconds)s * interval '1 second'),
    error=%(reason)s::VARCHAR
FROM this
WHERE sa_jobqueue.schedule.id = this.id
RETURNING sa_jobqueue.schedule.name,
    this.error AS before
