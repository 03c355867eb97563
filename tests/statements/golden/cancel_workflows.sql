SELECT acted.id
FROM sa_jobqueue.cancel_workflows(CAST(%(workflow_ids)s::VARCHAR AS BIGINT[]), %(reason)s::VARCHAR) AS acted(id)
