SELECT concat('sa_jobqueue_', CAST(CAST(concat(quote_ident(%(in_schema)s::VARCHAR), '.', quote_ident(%(of_table)s::VARCHAR)) AS REGCLASS) AS BIGINT)) AS concat_1
