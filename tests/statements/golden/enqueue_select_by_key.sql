INSERT INTO sa_jobqueue.job (task, queue, priority, max_attempts, run_at, args, uniqueness)
SELECT CAST(%(param_1)s::VARCHAR AS TEXT) AS anon_1,
    CAST(%(param_2)s::VARCHAR AS TEXT) AS anon_2,
    CAST(%(param_3)s::SMALLINT AS SMALLINT) AS anon_3,
    CAST(%(param_4)s::SMALLINT AS SMALLINT) AS anon_4,
    coalesce(keyed.sa_jobqueue_run_at, now()) AS coalesce_1,
    CASE WHEN (keyed.id IS NULL) THEN sa_jobqueue.refuse_argument(CAST(%(param_5)s::VARCHAR AS TEXT) || coalesce(left(CAST(keyed.id AS TEXT), %(left_1)s::INTEGER), 'NULL') || CAST(%(param_6)s::VARCHAR AS TEXT)) ELSE jsonb_build_object(CAST(%(param_7)s::VARCHAR AS TEXT), keyed.id) END AS anon_5,
    jsonb_build_object('key', keyed.sa_jobqueue_unique) AS jsonb_build_object_1
FROM (
    SELECT selected.id AS id,
        selected.sa_jobqueue_run_at AS sa_jobqueue_run_at,
        CAST(%(param_8)s::VARCHAR AS TEXT) || left(encode(sha256(convert_to(CAST(%(param_9)s::VARCHAR AS TEXT) || '' || CAST(%(param_10)s::VARCHAR AS TEXT) || coalesce(CAST(to_jsonb(selected.id) AS TEXT), 'null') || CAST(%(param_11)s::VARCHAR AS TEXT), 'UTF8')), 'hex'), %(left_2)s::INTEGER) AS sa_jobqueue_unique,
        row_number() OVER () AS sa_jobqueue_number
    FROM (
        SELECT orders.id AS id,
            orders.due AS sa_jobqueue_run_at
        FROM orders
    ) AS selected
) AS keyed
ORDER BY keyed.sa_jobqueue_unique,
    keyed.sa_jobqueue_number
