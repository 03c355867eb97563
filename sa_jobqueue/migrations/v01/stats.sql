-- What jobs came to, counted: a row per minute, queue and task, and after some days per hour.
--
-- Charts and rates are read here, so that they need no index on the time of a job's end, which made a mass completion 2.3 times as dear
-- (November 2026), and so that they outlive the jobs.

-- `seconds`: 60 or 3600, how long the time is for which the row stands. Each worker adds to the rows of the current minute, so there is
-- room for updates on the same page. The buckets of `runs` and `waits` are those of `sa_jobqueue.histogram`.
CREATE TABLE {schema}.stat (
    seconds integer NOT NULL,
    at timestamptz NOT NULL,
    completed bigint NOT NULL,
    retried bigint NOT NULL,
    failed bigint NOT NULL,
    cancelled bigint NOT NULL,
    snoozed bigint NOT NULL,
    suspended bigint NOT NULL,
    released bigint NOT NULL,
    rescued bigint NOT NULL,
    lost bigint NOT NULL,
    run_seconds double precision NOT NULL,
    wait_seconds double precision NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    runs bigint[] NOT NULL,
    waits bigint[] NOT NULL,
    CONSTRAINT stat_pkey PRIMARY KEY (seconds, at, queue, task)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000
);

-- How deep each queue was at the end of a minute, as a worker counted it then; only queues with queued or running jobs. The row of the
-- queue '', which has no jobs, says that there was a count. Where counting stopped, `more` is true.
CREATE TABLE {schema}.backlog (
    at timestamptz NOT NULL,
    due integer NOT NULL,
    running integer NOT NULL,
    oldest real,
    more boolean NOT NULL,
    queue text NOT NULL,
    CONSTRAINT backlog_pkey PRIMARY KEY (at, queue)
);
