-- The indexes of the job table. They go with it.

-- Jobs with a key have an index of their own (`limits`), in which the keys take turns.
CREATE INDEX job_claim_idx ON {schema}.job (queue, priority, run_at, id)
WHERE status = 'queued' AND concurrency_key IS NULL;

CREATE INDEX job_running_idx ON {schema}.job (id) WHERE status = 'running';

CREATE INDEX job_purge_idx ON {schema}.job (purge_at) WHERE purge_at IS NOT NULL;

-- The dead letters, which are few: they are listed and retried without a look at the jobs that completed.
CREATE INDEX job_failed_idx ON {schema}.job (id) WHERE status = 'failed';

-- Jobs that are not to be started any more from some time on: maintenance ends them. One index for both limits, and what most
-- jobs lack comes first in its condition: each write of a job evaluates the condition of each index.
CREATE INDEX job_limit_idx ON {schema}.job (LEAST(expires_at, deadline_at)) WHERE LEAST(expires_at, deadline_at) IS NOT NULL
    AND status IN ('queued', 'blocked');

-- The jobs about a row of the application's. A job without one has no entry here.
CREATE INDEX job_subject_idx ON {schema}.job (subject_type, subject_id) WHERE subject_type IS NOT NULL;
