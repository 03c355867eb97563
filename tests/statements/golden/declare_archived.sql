WITH no_longer AS (
    DELETE
    FROM sa_jobqueue.archived_task
    WHERE sa_jobqueue.archived_task.name = ANY (CAST(%(archived_no_longer)s::VARCHAR AS TEXT[]))
)
INSERT INTO sa_jobqueue.archived_task (name)
SELECT unnest(CAST(%(archived_names)s::VARCHAR AS TEXT[])) AS unnest_1 ON CONFLICT (name) DO NOTHING
