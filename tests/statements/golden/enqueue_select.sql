INSERT INTO sa_jobqueue.job (task, queue, priority, max_attempts, run_at, args)
SELECT CAST(%(param_1)s::VARCHAR AS TEXT) AS anon_1,
    CAST(%(param_2)s::VARCHAR AS TEXT) AS anon_2,
    CAST(%(param_3)s::SMALLINT AS SMALLINT) AS anon_3,
    CAST(%(param_4)s::SMALLINT AS SMALLINT) AS anon_4,
    now() AS now_1,
    CASE WHEN (selected.id IS NULL) THEN sa_jobqueue.refuse_argument(CAST(%(param_5)s::VARCHAR AS TEXT) || coalesce(left(CAST(selected.id AS TEXT), %(left_1)s::INTEGER), 'NULL') || CAST(%(param_6)s::VARCHAR AS TEXT)) ELSE jsonb_build_object(CAST(%(param_7)s::VARCHAR AS TEXT), selected.id, CAST(%(param_8)s::VARCHAR AS TEXT), CAST(selected.note AS TEXT)) END AS anon_5
FROM (
    SELECT orders.id AS id,
        orders.note AS note
    FROM orders
) AS selected
