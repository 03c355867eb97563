WITH chosen AS MATERIALIZED (
    SELECT sa_jobqueue.workflow.id AS id
    FROM sa_jobqueue.workflow
    WHERE sa_jobqueue.workflow.id = any(CAST(%(workflow_ids)s::VARCHAR AS BIGINT[]))
    AND sa_jobqueue.workflow.purge_at <= now()
    AND NOT (EXISTS (
        SELECT sa_jobqueue.workflow_event.id
        FROM sa_jobqueue.workflow_event
        WHERE sa_jobqueue.workflow_event.workflow_id = sa_jobqueue.workflow.id
    ))
    AND NOT (EXISTS (
        SELECT sa_jobqueue.job.id
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.workflow_id = sa_jobqueue.workflow.id
    ))
    FOR UPDATE
),
    callbacks AS (
    DELETE
    FROM sa_jobqueue.workflow_callback
    WHERE sa_jobqueue.workflow_callback.workflow_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
),
    joins AS (
    DELETE
    FROM sa_jobqueue.workflow_join
    WHERE sa_jobqueue.workflow_join.workflow_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
),
    events AS (
    DELETE
    FROM sa_jobqueue.workflow_event
    WHERE sa_jobqueue.workflow_event.workflow_id = any(array((
            SELECT chosen.id
            FROM chosen
        )
    ))
)
DELETE
FROM sa_jobqueue.workflow
WHERE sa_jobqueue.workflow.id = any(array((
        SELECT chosen.id
        FROM chosen
    )
))
RETURNING sa_jobqueue.workflow.id
