-- The archive: finished jobs of some tasks, partitioned by the month in which they finished.
--
-- There is no partition yet, and no default one: making a month's would have to look through that, under a lock that readers and writers wait
-- for. A row whose month has no partition cannot be moved, and stays in the table of jobs until a worker has made it.

-- All columns of a job, those of fixed width first, then its progress, its last log lines and its steps, from other tables.
-- `columns`: what a job table of the application's has besides.
CREATE TABLE {schema}.archived_job (
    id bigint NOT NULL,
    finished_at timestamptz NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT now(),
    run_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    claims integer NOT NULL,
    priority smallint NOT NULL,
    attempt smallint NOT NULL,
    max_attempts smallint NOT NULL,
    rescues smallint NOT NULL,
    claimed_at timestamptz,
    lease_expires_at timestamptz,
    purge_at timestamptz,
    cancel_requested_at timestamptz,
    expires_at timestamptz,
    deadline_at timestamptz,
    ready_at timestamptz,
    tick_at timestamptz,
    claim_token bigint,
    schedule_id bigint,
    workflow_id bigint,
    blocked_by bigint,
    duplicate_of bigint,
    progress double precision,
    ticks integer,
    units smallint,
    inputs smallint,
    status text NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    args jsonb NOT NULL,
    meta jsonb NOT NULL,
    errors jsonb NOT NULL,
    worker text,
    result jsonb,
    uniqueness jsonb,
    concurrency_key text COLLATE "C",
    subject_type text COLLATE "C",
    subject_id text COLLATE "C",
    extras jsonb,
    progress_message text,
    logs jsonb,
    steps jsonb,
    columns jsonb,
    CONSTRAINT archived_job_pkey PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);

CREATE INDEX archived_job_subject_idx ON {schema}.archived_job (subject_type, subject_id) WHERE subject_type IS NOT NULL;

-- The tasks whose jobs are moved, as the code of workers says. Every worker heeds it, also one that does not have these tasks.
CREATE TABLE {schema}.archived_task (
    name text NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT archived_task_pkey PRIMARY KEY (name)
);

-- Of the functions. A worker's role owns no table, so they have the rights of the schema's owner. They wait for no other transaction
-- for long: while one waits for its lock, later statements on the table wait behind it.
-- Makes the missing partitions of the months of these times, and returns how many. An empty table is attached, because CREATE TABLE
-- ... PARTITION OF would lock out all who read and move. It has what the application has given the archive: without that it could not be.
CREATE FUNCTION {schema}.make_archive_months(times timestamptz[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms' SET timezone = 'UTC' SET datestyle = 'ISO' AS $body$
DECLARE
    month timestamptz;
    part text;
    made integer := 0;
BEGIN
    FOR month IN
        SELECT DISTINCT date_trunc('month', given.at) FROM unnest($1) AS given (at)
        WHERE given.at BETWEEN '1970-01-01 00:00:00+00' AND now() + interval '2 months'
        ORDER BY 1
    LOOP
        part := 'archived_job_' || to_char(month, 'YYYY_MM');
        CONTINUE WHEN to_regclass({name} || '.' || part) IS NOT NULL;
        LOCK TABLE ONLY {schema}.archived_job IN SHARE UPDATE EXCLUSIVE MODE;
        -- Another worker may have made it meanwhile.
        CONTINUE WHEN to_regclass({name} || '.' || part) IS NOT NULL;
        EXECUTE format(
            'CREATE TABLE %1$s.%2$s (LIKE %1$s.archived_job INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING CONSTRAINTS '
                'INCLUDING STORAGE INCLUDING COMPRESSION)',
            {name}, part
        );
        EXECUTE format(
            'ALTER TABLE %1$s.archived_job ATTACH PARTITION %1$s.%2$s FOR VALUES FROM (%3$L) TO (%4$L)',
            {name}, part, month, month + interval '1 month'
        );
        made := made + 1;
    END LOOP;
    RETURN made;
END
$body$;

-- Drops the oldest of the partitions whose month ended more than this number of months ago, and returns its name; NULL: there is none.
CREATE FUNCTION {schema}.drop_archive_month(kept integer) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms' SET timezone = 'UTC' SET datestyle = 'ISO' AS $body$
DECLARE
    part text;
BEGIN
    IF $1 IS NULL OR $1 < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'an archive is kept for 1 month at least';
    END IF;
    FOR attempt IN 1 .. 2 LOOP
        SELECT child.relname INTO part
        FROM pg_inherits AS tree JOIN pg_class AS child ON child.oid = tree.inhrelid
        WHERE tree.inhparent = ({name} || '.archived_job')::regclass
            AND child.relname ~ '^archived_job_\d\d\d\d_\d\d$'
            AND to_date(right(child.relname, 7), 'YYYY_MM') + make_interval(months => $1 + 1) <= now()
        ORDER BY child.relname
        LIMIT 1;
        IF part IS NULL THEN
            RETURN NULL;
        END IF;
        -- And once more with the lock: another worker may have dropped it meanwhile.
        LOCK TABLE ONLY {schema}.archived_job IN ACCESS EXCLUSIVE MODE;
    END LOOP;
    EXECUTE format('ALTER TABLE %1$s.archived_job DETACH PARTITION %1$s.%2$s', {name}, part);
    EXECUTE format('DROP TABLE %1$s.%2$s', {name}, part);
    RETURN part;
END
$body$;

REVOKE ALL ON FUNCTION {schema}.make_archive_months(timestamptz[]), {schema}.drop_archive_month(integer) FROM PUBLIC;
