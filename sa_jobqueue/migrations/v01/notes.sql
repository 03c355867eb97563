-- What running jobs say: how far they are, and the log lines of tasks that keep them.
--
-- Both are beside the jobs. A report in the job's own row took less WAL (110 bytes instead of 170; November 2026), but it locks the row that
-- the handler's transaction completes, and made the table that each claim reads three times as large. Neither table has a foreign key, which
-- each DELETE of any job would have to look at. Pruning deletes the rows together with their jobs.

-- A row for a job that has reported something. It is about the claim that has this token; a row of an older claim says nothing
-- any more.
CREATE TABLE {schema}.job_progress (
    job_id bigint NOT NULL,
    claim_token bigint NOT NULL,
    fraction double precision NOT NULL,
    written_at timestamptz NOT NULL,
    claims integer NOT NULL,
    message text,
    CONSTRAINT job_progress_pkey PRIMARY KEY (job_id)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000
);

-- `lines`: [[seconds since 1970, level, text], ...]. A claim writes parts 0, 1, ..., and deletes the oldest.
CREATE TABLE {schema}.job_log (
    job_id bigint NOT NULL,
    claim_token bigint NOT NULL,
    written_at timestamptz NOT NULL,
    part integer NOT NULL,
    attempt smallint NOT NULL,
    lines jsonb NOT NULL,
    CONSTRAINT job_log_pkey PRIMARY KEY (job_id, claim_token, part)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000
);
