SELECT setval(CAST(concat(concat(quote_ident(%(in_schema)s::VARCHAR), '.gate_'), asked.gate) AS REGCLASS), greatest(CAST(ceil(EXTRACT(epoch FROM clock_timestamp()) + %(open_seconds)s) AS BIGINT), pg_sequence_last_value(CAST(concat(concat(quote_ident(%(in_schema)s::VARCHAR), '.gate_'), asked.gate) AS REGCLASS)))) AS setval_1
FROM (
    SELECT CAST(generate_series(0, 15) AS TEXT) AS gate
    UNION ALL
    SELECT 'any'
) AS asked
