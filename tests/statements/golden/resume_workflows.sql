SELECT acted.id
FROM sa_jobqueue.resume_workflows(CAST(%(workflow_ids)s::VARCHAR AS BIGINT[])) AS acted(id)
