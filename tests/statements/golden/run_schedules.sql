SELECT sa_jobqueue.enqueue_ticks(array_agg(CAST(sa_jobqueue.schedule.id AS BIGINT) ORDER BY sa_jobqueue.schedule.id), array_agg(CAST(date_part('epoch', now()) AS FLOAT(53)) ORDER BY sa_jobqueue.schedule.id), array_agg(CAST(1 AS INTEGER) ORDER BY sa_jobqueue.schedule.id), array_agg(CAST(0 AS FLOAT(53)) ORDER BY sa_jobqueue.schedule.id)) AS id
FROM sa_jobqueue.schedule
WHERE sa_jobqueue.schedule.name = %(name_1)s::VARCHAR
