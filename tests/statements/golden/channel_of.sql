SELECT concat('sa_jobqueue_', CAST(CAST(%(of_table)s::VARCHAR AS REGCLASS) AS BIGINT)) AS concat_1
