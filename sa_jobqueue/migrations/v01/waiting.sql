-- How the end of a job is told to programs that wait for it: a gate, the awaited jobs, and the NOTIFY.

-- Which process waits for which job, until when. Not logged: after a crash of the server each of them says it again, and a wait
-- costs no write-ahead log.
CREATE UNLOGGED TABLE {schema}.awaited (
    job_id bigint NOT NULL,
    waiter uuid NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT awaited_pkey PRIMARY KEY (job_id, waiter)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000
);

-- The second of the epoch until which any job is awaited, as in the gates of `waking`. It is for all to read, because
-- what ends a job reads it with the rights of its own role.
CREATE SEQUENCE {schema}.gate_end AS bigint MINVALUE 0 MAXVALUE 99999999999 START WITH 0 NO CYCLE CACHE 1;

GRANT SELECT ON SEQUENCE {schema}.gate_end TO PUBLIC;

-- Asked once by each statement that ends jobs. A plain SQL expression, so that it is inlined.
CREATE FUNCTION {schema}.any_awaited() RETURNS boolean LANGUAGE sql VOLATILE
RETURN pg_catalog.to_timestamp(pg_catalog.pg_sequence_last_value({name}
    '.gate_end'::pg_catalog.regclass)) > pg_catalog.clock_timestamp();

-- Called with jobs that have ended: those of them that are awaited are told at the commit. SECURITY DEFINER: the role that ends a job
-- need not be able to read `awaited`.
CREATE FUNCTION {schema}.tell_ended(ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $body$
BEGIN
    PERFORM pg_notify('sa_jobqueue_' || told.of_table, told.job_id::text)
    FROM (SELECT DISTINCT tableoid AS of_table, job_id FROM {schema}.awaited WHERE job_id = ANY ($1)) AS told;
    RETURN $1;
END
$body$;
