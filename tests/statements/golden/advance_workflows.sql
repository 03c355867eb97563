SELECT moved.again_ids,
    moved.busy_ids,
    moved.read_ids,
    moved.last_ids,
    moved.queues,
    moved.eaten
FROM sa_jobqueue.advance(CAST(%(advance_ids)s::VARCHAR AS BIGINT[]), CAST(%(advance_after)s::VARCHAR AS BIGINT[]), %(most)s::INTEGER) AS moved(again_ids, busy_ids, read_ids, last_ids, queues, eaten)
