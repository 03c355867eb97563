SELECT acted.id
FROM sa_jobqueue.retry_workflow(%(workflow)s::BIGINT, %(from_node)s::BIGINT) AS acted(id)
