UPDATE sa_jobqueue.schedule
SET next_at=to_timestamp(move.next_at),
    due_at=coalesce(to_timestamp(coalesce(move.due_at, move.next_at)), 'infinity'::timestamptz),
    last_tick_at=coalesce(to_timestamp(move.last_tick_at), sa_jobqueue.schedule.last_tick_at),
    waiting_since=to_timestamp(move.waiting_since),
    left_out=(sa_jobqueue.schedule.left_out + move.left_out),
    error=NULL
FROM unnest(CAST(%(move_id)s::VARCHAR AS BIGINT[]), CAST(%(move_next_at)s::VARCHAR AS FLOAT(53)[]), CAST(%(move_due_at)s::VARCHAR AS FLOAT(53)[]), CAST(%(move_last_tick_at)s::VARCHAR AS FLOAT(53)[]), CAST(%(move_waiting_since)s::VARCHAR AS FLOAT(53)[]), CAST(%(move_left_out)s::VARCHAR AS BIGINT[])) AS move(id, next_at, due_at, last_tick_at, waiting_since, left_out)
WHERE sa_jobqueue.schedule.id = any(array((
        SELECT move.id
        FROM unnest(CAST(%(move_id)s::VARCHAR AS BIGINT[]), CAST(%(move_next_at)s::VARCHAR AS FLOAT(53)[]), CAST(%(move_due_at)s::VARCHAR AS FLOAT(53)[]), CAST(%(move_last_tick_at)s::VARCHAR AS FLOAT(53)[]), CAST(%(move_waiting_since)s::VARCHAR AS FLOAT(53)[]), CAST(%(move_left_out)s::VARCHAR AS BIGINT[])) AS move(id, next_at, due_at, last_tick_at, waiting_since, left_out)
    )
))
AND sa_jobqueue.schedule.id = move.id
