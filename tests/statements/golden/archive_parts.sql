SELECT CASE WHEN part.relname ~ '^archived_job_[0-9]{4}_[0-9]{2}$' THEN replace(right(part.relname, 7), '_', '-') ELSE part.relname::text END
FROM pg_catalog.pg_inherits AS tree
JOIN pg_catalog.pg_class AS part ON part.oid = tree.inhrelid
WHERE tree.inhparent = to_regclass(quote_ident(%(in_schema)s::VARCHAR) || '.archived_job')
AND has_any_column_privilege(tree.inhparent, 'SELECT')
AND (row_security_active(tree.inhparent) OR NOT row_security_active(to_regclass(quote_ident(%(in_schema)s::VARCHAR) || '.' || quote_ident(%(in_table)s::VARCHAR))))
ORDER BY part.relname DESC
