SELECT EXISTS (
    SELECT
    FROM pg_catalog.pg_locks AS held
    WHERE held.locktype = 'relation'
    AND held.pid <> pg_backend_pid()
    AND held.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND held.database = (
        SELECT oid
        FROM pg_catalog.pg_database
        WHERE datname = current_database()
    )
    AND held.relation IN (
        SELECT relid
        FROM pg_partition_tree(to_regclass(quote_ident(%(in_schema)s::VARCHAR) || '.archived_job'))
    )
)
