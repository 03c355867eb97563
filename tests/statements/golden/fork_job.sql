WITH recorded AS MATERIALIZED (
    SELECT sa_jobqueue.step.job_id AS job_id,
        sa_jobqueue.step.claim_token AS claim_token,
        sa_jobqueue.step.unused_by AS unused_by,
        sa_jobqueue.step.ended_at AS ended_at,
        sa_jobqueue.step.took AS took,
        sa_jobqueue.step.revision AS revision,
        sa_jobqueue.step.kind AS kind,
        sa_jobqueue.step.name AS name,
        sa_jobqueue.step.digest AS digest,
        sa_jobqueue.step.result AS result,
        row_number() OVER (ORDER BY sa_jobqueue.step.ended_at, sa_jobqueue.step.name) AS place
    FROM sa_jobqueue.step
    WHERE sa_jobqueue.step.job_id = %(of_job)s::BIGINT
),
    made AS (INSERT INTO sa_jobqueue.job (task, args, queue, priority, max_attempts, run_at, meta, uniqueness, expires_at, deadline_at, concurrency_key, units, subject_type, subject_id, extras) SELECT sa_jobqueue.job.task AS task, sa_jobqueue.job.args AS args, sa_jobqueue.job.queue AS queue, sa_jobqueue.job.priority AS priority, sa_jobqueue.job.max_attempts AS max_attempts, now() + %(delay_seconds)s * interval '1 second' AS anon_2, sa_jobqueue.job.meta AS meta, CAST(NULL AS JSONB) AS anon_3, CASE WHEN (sa_jobqueue.job.expires_at > sa_jobqueue.job.created_at) THEN now() + (sa_jobqueue.job.expires_at - sa_jobqueue.job.created_at) ELSE NULL END AS anon_4, CASE WHEN (sa_jobqueue.job.deadline_at > sa_jobqueue.job.created_at) THEN now() + (sa_jobqueue.job.deadline_at - sa_jobqueue.job.created_at) ELSE NULL END AS anon_5, CASE WHEN (sa_jobqueue.job.concurrency_key >= chr(2)) THEN sa_jobqueue.job.concurrency_key ELSE NULL END AS anon_6, sa_jobqueue.job.units AS units, sa_jobqueue.job.subject_type AS subject_type, sa_jobqueue.job.subject_id AS subject_id, sa_jobqueue.job.extras AS extras FROM sa_jobqueue.job WHERE sa_jobqueue.job.id = %(of_job)s::BIGINT AND sa_jobqueue.job.status IN ('completed', 'failed', 'cancelled') AND sa_jobqueue.job.inputs IS NULL AND (EXISTS (
    SELECT recorded.place
    FROM recorded
    WHERE recorded.name = %(from_step)s::VARCHAR
)) RETURNING sa_jobqueue.job.id),
    copied AS (INSERT INTO sa_jobqueue.step (job_id, claim_token, ended_at, took, revision, kind, name, digest, result) SELECT made.id AS id, recorded.claim_token AS claim_token, now() + recorded.place * interval '1 microsecond' AS anon_1, recorded.took AS took, recorded.revision AS revision, recorded.kind AS kind, recorded.name AS name, recorded.digest AS digest, recorded.result AS result FROM made JOIN recorded ON recorded.place < (
    SELECT recorded.place
    FROM recorded
    WHERE recorded.name = %(from_step)s::VARCHAR
))
SELECT coalesce((
        SELECT made.id
        FROM made
    ),
        CAST(sa_jobqueue.refuse_argument(CASE WHEN ((
            SELECT CAST(sa_jobqueue.job.status AS TEXT) AS status
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.id = %(of_job)s::BIGINT
        ) IS NULL
    ) THEN %(param_1)s::VARCHAR WHEN (((
                SELECT CAST(sa_jobqueue.job.status AS TEXT) AS status
                FROM sa_jobqueue.job
                WHERE sa_jobqueue.job.id = %(of_job)s::BIGINT
            ) NOT IN ('completed', 'failed', 'cancelled')
        )
    ) THEN %(param_2)s::VARCHAR || (
        SELECT CAST(sa_jobqueue.job.status AS TEXT) AS status
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.id = %(of_job)s::BIGINT
    ) WHEN ((
            SELECT sa_jobqueue.job.inputs
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.id = %(of_job)s::BIGINT
        ) IS NOT NULL
    ) THEN %(param_3)s::VARCHAR ELSE %(param_4)s::VARCHAR || coalesce((
            SELECT string_agg(recorded.name, ', ' ORDER BY recorded.place) AS string_agg_1
            FROM recorded
            WHERE recorded.place <= 30
        ),
            'no steps at all'
    ) END) AS BIGINT)
) AS id
