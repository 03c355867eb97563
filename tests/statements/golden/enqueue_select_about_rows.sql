INSERT INTO sa_jobqueue.job (task, queue, priority, max_attempts, run_at, subject_type, subject_id, args)
SELECT CAST(%(param_1)s::VARCHAR AS TEXT) AS anon_1,
    CAST(%(param_2)s::VARCHAR AS TEXT) AS anon_2,
    CAST(%(param_3)s::SMALLINT AS SMALLINT) AS anon_3,
    CAST(%(param_4)s::SMALLINT AS SMALLINT) AS anon_4,
    now() AS now_1,
    CASE WHEN (selected.sa_jobqueue_subject IS NOT NULL) THEN %(param_5)s::VARCHAR END AS anon_5,
    selected.sa_jobqueue_subject,
    CASE WHEN (selected.number IS NULL) THEN sa_jobqueue.refuse_argument(CAST(%(param_6)s::VARCHAR AS TEXT) || coalesce(left(CAST(selected.number AS TEXT), %(left_1)s::INTEGER), 'NULL') || CAST(%(param_7)s::VARCHAR AS TEXT)) ELSE jsonb_build_object(CAST(%(param_8)s::VARCHAR AS TEXT), selected.number, CAST(%(param_9)s::VARCHAR AS TEXT), CAST(selected.place AS TEXT)) END AS anon_6
FROM (
    SELECT stock.number AS number,
        stock.place AS place,
        CASE WHEN (stock.place IS NOT NULL AND stock.number IS NOT NULL) THEN CAST(jsonb_build_array(CAST(stock.place AS TEXT), stock.number) AS TEXT) END AS sa_jobqueue_subject
    FROM stock
) AS selected
