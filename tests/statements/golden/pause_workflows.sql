SELECT acted.id
FROM sa_jobqueue.pause_workflows(CAST(%(workflow_ids)s::VARCHAR AS BIGINT[])) AS acted(id)
