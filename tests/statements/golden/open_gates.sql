SELECT setval(CAST(concat(concat(quote_ident(%(in_schema)s::VARCHAR), '.gate_'), asked.gate) AS REGCLASS), greatest(CAST(ceil(EXTRACT(epoch FROM clock_timestamp()) + %(open_seconds)s) AS BIGINT), pg_sequence_last_value(CAST(concat(concat(quote_ident(%(in_schema)s::VARCHAR), '.gate_'), asked.gate) AS REGCLASS)))) AS setval_1
FROM (
    SELECT CAST(hashtext(wanted.queue) & 15 AS TEXT) AS gate
    FROM unnest(CAST(%(queue_names)s::VARCHAR AS TEXT[])) AS wanted(queue)
    UNION ALL
    SELECT 'any'
) AS asked
