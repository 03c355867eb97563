WITH asked AS (
    SELECT sa_jobqueue.job.id AS id,
        sa_jobqueue.job.queue AS queue,
        sa_jobqueue.job.task AS task,
        sa_jobqueue.job.run_at AS run_at,
        CASE WHEN (sa_jobqueue.job.concurrency_key >= chr(2)) THEN sa_jobqueue.job.concurrency_key END AS key,
        coalesce(sa_jobqueue.job.units, 1) AS units
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.id = %(job_id)s::BIGINT
    AND sa_jobqueue.job.status = 'queued'
),
    scope AS (
    SELECT its_scope.owner AS owner,
        its_scope.name AS name,
        its_scope.key AS key,
        its_scope.running AS running,
        its_scope.rate_count AS rate_count,
        its_scope.rate_seconds AS rate_seconds,
        its_scope.rate_burst AS rate_burst,
        its_scope.paused_at AS paused_at,
        its_scope.pause_reason AS pause_reason,
        its_scope.broken_until AS broken_until,
        its_scope.strict AS strict,
        sa_jobqueue.limit_state.free_at AS free_at,
        sa_jobqueue.limit_state.owed_at AS owed_at,
        sa_jobqueue.limit_state.owed AS owed,
        sa_jobqueue.limit_state.blocked_until AS blocked_until
    FROM (
        SELECT its_owner.owner AS owner,
            its_owner.name AS name,
            CAST(NULL AS TEXT) AS key,
            sa_jobqueue.job_limit.running AS running,
            sa_jobqueue.job_limit.rate_count AS rate_count,
            sa_jobqueue.job_limit.rate_seconds AS rate_seconds,
            sa_jobqueue.job_limit.rate_burst AS rate_burst,
            sa_jobqueue.job_limit.paused_at AS paused_at,
            sa_jobqueue.job_limit.pause_reason AS pause_reason,
            sa_jobqueue.job_limit.broken_until AS broken_until,
            false AS strict
        FROM (
            SELECT 'queue' AS owner,
                asked.queue AS name,
                asked.key AS key
            FROM asked
            UNION ALL
            SELECT 'task',
                asked.task AS task,
                asked.key AS key
            FROM asked
        ) AS its_owner
        LEFT OUTER JOIN sa_jobqueue.job_limit ON sa_jobqueue.job_limit.owner = its_owner.owner
        AND sa_jobqueue.job_limit.name = its_owner.name
        WHERE its_owner.owner = 'queue'
        OR sa_jobqueue.job_limit.name IS NOT NULL
        UNION ALL
        SELECT its_owner.owner AS owner,
            its_owner.name AS name,
            its_owner.key AS key,
            coalesce(sa_jobqueue.job_key.running, sa_jobqueue.job_limit.key_running) AS coalesce_1,
            CASE WHEN (sa_jobqueue.job_key.rate_count IS NOT NULL) THEN sa_jobqueue.job_key.rate_count ELSE sa_jobqueue.job_limit.key_rate_count END AS anon_1,
            CASE WHEN (sa_jobqueue.job_key.rate_count IS NOT NULL) THEN sa_jobqueue.job_key.rate_seconds ELSE sa_jobqueue.job_limit.key_rate_seconds END AS anon_2,
            CASE WHEN (sa_jobqueue.job_key.rate_count IS NOT NULL) THEN sa_jobqueue.job_key.rate_burst ELSE sa_jobqueue.job_limit.key_rate_burst END AS anon_3,
            sa_jobqueue.job_key.paused_at AS paused_at,
            sa_jobqueue.job_key.pause_reason AS pause_reason,
            sa_jobqueue.job_key.broken_until AS broken_until,
            sa_jobqueue.job_limit.strict AS strict
        FROM (
            SELECT 'queue' AS owner,
                asked.queue AS name,
                asked.key AS key
            FROM asked
            UNION ALL
            SELECT 'task',
                asked.task AS task,
                asked.key AS key
            FROM asked
        ) AS its_owner
        LEFT OUTER JOIN sa_jobqueue.job_limit ON sa_jobqueue.job_limit.owner = its_owner.owner
        AND sa_jobqueue.job_limit.name = its_owner.name
        LEFT OUTER JOIN sa_jobqueue.job_key ON sa_jobqueue.job_key.owner = its_owner.owner
        AND sa_jobqueue.job_key.name = its_owner.name
        AND sa_jobqueue.job_key.key = its_owner.key
        WHERE (its_owner.owner = 'queue' OR sa_jobqueue.job_limit.name IS NOT NULL)
        AND its_owner.key IS NOT NULL
    ) AS its_scope
    LEFT OUTER JOIN sa_jobqueue.limit_state ON sa_jobqueue.limit_state.owner = its_scope.owner
    AND sa_jobqueue.limit_state.name = its_scope.name
    AND sa_jobqueue.limit_state.key = coalesce(its_scope.key, '')
)
SELECT found.owner,
    found.name,
    found.key,
    found.what,
    found."limit",
    found.used,
    found.job_ids,
    found.until,
    found.seconds,
    found.reason,
    found.since
FROM (
    SELECT 0 AS place,
        CAST(NULL AS TEXT) AS owner,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS key,
        'later' AS what,
        CAST(NULL AS INTEGER) AS "limit",
        CAST(NULL AS BIGINT) AS used,
        CAST(NULL AS BIGINT[]) AS job_ids,
        CASE WHEN (asked.run_at < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (asked.run_at > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE asked.run_at END AS until,
        CAST(NULL AS FLOAT) AS seconds,
        CAST(NULL AS TEXT) AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM asked
    WHERE asked.run_at > statement_timestamp()
    UNION ALL
    SELECT 1 AS place,
        scope.owner AS owner,
        scope.name AS name,
        scope.key AS key,
        'paused' AS what,
        CAST(NULL AS INTEGER) AS "limit",
        CAST(NULL AS BIGINT) AS used,
        CAST(NULL AS BIGINT[]) AS job_ids,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS until,
        CAST(NULL AS FLOAT) AS seconds,
        scope.pause_reason AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM scope
    WHERE scope.paused_at IS NOT NULL
    UNION ALL
    SELECT 2 AS place,
        scope.owner AS owner,
        scope.name AS name,
        scope.key AS key,
        'breaker' AS what,
        CAST(NULL AS INTEGER) AS "limit",
        CAST(NULL AS BIGINT) AS used,
        CAST(NULL AS BIGINT[]) AS job_ids,
        CASE WHEN (CASE WHEN (scope.broken_until > statement_timestamp()) THEN scope.broken_until END < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (CASE WHEN (scope.broken_until > statement_timestamp()) THEN scope.broken_until END > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE CASE WHEN (scope.broken_until > statement_timestamp()) THEN scope.broken_until END END AS until,
        CAST(NULL AS FLOAT) AS seconds,
        CAST(NULL AS TEXT) AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM scope
    WHERE scope.broken_until > statement_timestamp()
    OR (EXISTS (
        SELECT 1
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.status = 'running'
        AND sa_jobqueue.job.task = scope.name
        AND (scope.key IS NULL OR sa_jobqueue.job.concurrency_key = scope.key)
        AND sa_jobqueue.job.claimed_at >= scope.broken_until
    ))
    UNION ALL
    SELECT 2 AS place,
        scope.owner AS owner,
        scope.name AS name,
        scope.key AS key,
        'blocked' AS what,
        CAST(NULL AS INTEGER) AS "limit",
        CAST(NULL AS BIGINT) AS used,
        CAST(NULL AS BIGINT[]) AS job_ids,
        CASE WHEN (scope.blocked_until < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (scope.blocked_until > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE scope.blocked_until END AS until,
        CAST(NULL AS FLOAT) AS seconds,
        CAST(NULL AS TEXT) AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM scope
    WHERE scope.blocked_until > statement_timestamp()
    UNION ALL
    SELECT 3 AS place,
        scope.owner AS owner,
        scope.name AS name,
        scope.key AS key,
        'strict' AS what,
        CAST(NULL AS INTEGER) AS "limit",
        CAST(NULL AS BIGINT) AS used,
        these.ids AS job_ids,
        CASE WHEN (these.last < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (these.last > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE these.last END AS until,
        CAST(NULL AS FLOAT) AS seconds,
        CAST(NULL AS TEXT) AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM scope
    JOIN LATERAL (
        SELECT count(*) AS number,
            trim_array(array_agg(sa_jobqueue.job.id ORDER BY sa_jobqueue.job.id + 0), CAST(greatest(count(*) - 20, 0) AS INTEGER)) AS ids,
            max(sa_jobqueue.job.run_at) AS last
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.concurrency_key = scope.key
        AND sa_jobqueue.job.concurrency_key IS NOT NULL
        AND (sa_jobqueue.job.status = 'running' OR sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.claims > 0)
        AND sa_jobqueue.job.status != 'running'
        AND sa_jobqueue.job.run_at > greatest(sa_jobqueue.job.created_at, sa_jobqueue.job.ready_at)
        AND CASE WHEN (scope.owner = 'queue') THEN sa_jobqueue.job.queue = scope.name ELSE sa_jobqueue.job.task = scope.name END
        AND sa_jobqueue.job.id != (
            SELECT asked.id
            FROM asked
        )
    ) AS these ON true
    WHERE scope.strict
    AND these.number > 0
    UNION ALL
    SELECT 4 AS place,
        scope.owner AS owner,
        scope.name AS name,
        scope.key AS key,
        'running' AS what,
        scope.running AS "limit",
        these.number AS used,
        these.ids AS job_ids,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS until,
        CAST(NULL AS FLOAT) AS seconds,
        CAST(NULL AS TEXT) AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM scope
    JOIN LATERAL (
        SELECT count(*) AS number,
            trim_array(array_agg(sa_jobqueue.job.id ORDER BY sa_jobqueue.job.id + 0), CAST(greatest(count(*) - 20, 0) AS INTEGER)) AS ids,
            max(sa_jobqueue.job.run_at) AS last
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.status = 'running'
        AND CASE WHEN (scope.owner = 'queue') THEN sa_jobqueue.job.queue = scope.name ELSE sa_jobqueue.job.task = scope.name END
    ) AS these ON true
    WHERE scope.key IS NULL
    AND scope.running IS NOT NULL
    AND scope.running <= these.number
    UNION ALL
    SELECT 4 AS place,
        scope.owner AS owner,
        scope.name AS name,
        scope.key AS key,
        'running' AS what,
        scope.running AS "limit",
        these.number AS used,
        these.ids AS job_ids,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS until,
        CAST(NULL AS FLOAT) AS seconds,
        CAST(NULL AS TEXT) AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM scope
    JOIN LATERAL (
        SELECT count(*) AS number,
            trim_array(array_agg(sa_jobqueue.job.id ORDER BY sa_jobqueue.job.id + 0), CAST(greatest(count(*) - 20, 0) AS INTEGER)) AS ids,
            max(sa_jobqueue.job.run_at) AS last
        FROM sa_jobqueue.job
        WHERE (sa_jobqueue.job.concurrency_key, sa_jobqueue.job.status != 'queued', sa_jobqueue.job.id) >= (scope.key, true, 0)
        AND sa_jobqueue.job.concurrency_key <= scope.key
        AND sa_jobqueue.job.concurrency_key IS NOT NULL
        AND (sa_jobqueue.job.status = 'running' OR sa_jobqueue.job.status = 'queued' AND sa_jobqueue.job.claims > 0)
        AND CASE WHEN (scope.owner = 'queue') THEN sa_jobqueue.job.queue = scope.name ELSE sa_jobqueue.job.task = scope.name END
    ) AS these ON true
    WHERE scope.key IS NOT NULL
    AND scope.running IS NOT NULL
    AND scope.running <= these.number
    UNION ALL
    SELECT 5 AS place,
        scope.owner AS owner,
        scope.name AS name,
        scope.key AS key,
        'rate' AS what,
        scope.rate_count AS "limit",
        CAST(NULL AS BIGINT) AS used,
        CAST(NULL AS BIGINT[]) AS job_ids,
        CASE WHEN (statement_timestamp() + least((((sa_jobqueue.rate_owed(scope.free_at, scope.owed_at, scope.owed, statement_timestamp(), scope.rate_count, scope.rate_seconds) + least(asked.units, scope.rate_burst)) - scope.rate_burst) * scope.rate_seconds) / CAST(CAST(scope.rate_count AS FLOAT(53)) AS FLOAT(53)), 1e10) * interval '1 second' < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (statement_timestamp() + least((((sa_jobqueue.rate_owed(scope.free_at, scope.owed_at, scope.owed, statement_timestamp(), scope.rate_count, scope.rate_seconds) + least(asked.units, scope.rate_burst)) - scope.rate_burst) * scope.rate_seconds) / CAST(CAST(scope.rate_count AS FLOAT(53)) AS FLOAT(53)), 1e10) * interval '1 second' > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE statement_timestamp() + least((((sa_jobqueue.rate_owed(scope.free_at, scope.owed_at, scope.owed, statement_timestamp(), scope.rate_count, scope.rate_seconds) + least(asked.units, scope.rate_burst)) - scope.rate_burst) * scope.rate_seconds) / CAST(CAST(scope.rate_count AS FLOAT(53)) AS FLOAT(53)), 1e10) * interval '1 second' END AS until,
        scope.rate_seconds AS seconds,
        CAST(NULL AS TEXT) AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM scope
    JOIN asked ON true
    WHERE scope.rate_count IS NOT NULL
    AND (sa_jobqueue.rate_owed(scope.free_at, scope.owed_at, scope.owed, statement_timestamp(), scope.rate_count, scope.rate_seconds) + least(asked.units, scope.rate_burst)) - scope.rate_burst > 0.000001
    UNION ALL
    SELECT 5 AS place,
        further_1.owner AS owner,
        further_1.name AS name,
        further_1.key AS key,
        CAST(CASE WHEN (further_1.used IS NULL) THEN 'rate' ELSE 'running' END AS TEXT) AS what,
        further_1.count AS "limit",
        further_1.used AS used,
        CAST(NULL AS BIGINT[]) AS job_ids,
        CASE WHEN (further_1.until < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (further_1.until > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE further_1.until END AS until,
        further_1.seconds AS seconds,
        nullif(further_1.unit, '') AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM asked
    JOIN LATERAL sa_jobqueue.further_full(asked.id) AS further_1 ON true
    UNION ALL
    SELECT 6 AS place,
        CAST(NULL AS TEXT) AS owner,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS key,
        'parents' AS what,
        CAST(NULL AS INTEGER) AS "limit",
        parents.number AS used,
        parents.ids AS job_ids,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS until,
        CAST(NULL AS FLOAT) AS seconds,
        CAST(NULL AS TEXT) AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    FROM (
        SELECT count(*) AS number,
            CAST(trim_array(array_agg(parent.id ORDER BY parent.id), CAST(greatest(count(*) - 20, 0) AS INTEGER)) AS BIGINT[]) AS ids
        FROM sa_jobqueue.job AS me
        JOIN sa_jobqueue.workflow_dependency ON sa_jobqueue.workflow_dependency.child_id = me.id
        JOIN sa_jobqueue.job AS parent ON parent.id = sa_jobqueue.workflow_dependency.parent_id
        WHERE me.id = %(job_id)s::BIGINT
        AND me.status = 'blocked'
        AND parent.status IN ('queued', 'blocked', 'running')
    ) AS parents
    WHERE parents.number > 0
    UNION ALL
    SELECT 7 AS place,
        CAST(NULL AS TEXT) AS owner,
        CAST(NULL AS TEXT) AS name,
        CAST(NULL AS TEXT) AS key,
        'held' AS what,
        CAST(NULL AS INTEGER) AS "limit",
        CAST(NULL AS BIGINT) AS used,
        CAST(NULL AS BIGINT[]) AS job_ids,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS until,
        CAST(NULL AS FLOAT) AS seconds,
        CAST(NULL AS TEXT) AS reason,
        CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS since
    WHERE EXISTS (
        SELECT sa_jobqueue.workflow.id
        FROM sa_jobqueue.workflow
        JOIN sa_jobqueue.job ON sa_jobqueue.job.workflow_id = sa_jobqueue.workflow.id
        WHERE sa_jobqueue.job.id = %(job_id)s::BIGINT
        AND sa_jobqueue.job.status = 'blocked'
        AND sa_jobqueue.workflow.paused_at IS NOT NULL
    )
    UNION ALL
    SELECT 8 AS place,
        CAST(NULL AS TEXT) AS owner,
        sa_jobqueue.wait.signal AS name,
        CAST(NULL AS TEXT) AS key,
        CAST(CASE WHEN (sa_jobqueue.wait.signal IS NOT NULL) THEN 'signal' WHEN (sa_jobqueue.wait.jobs IS NOT NULL) THEN 'join' WHEN (sa_jobqueue.wait.until IS NOT NULL) THEN 'sleep' ELSE 'differs' END AS TEXT) AS what,
        CAST(NULL AS INTEGER) AS "limit",
        CAST(cardinality(sa_jobqueue.wait.jobs) AS BIGINT) AS used,
        CASE WHEN (sa_jobqueue.wait.jobs IS NOT NULL) THEN array((
            SELECT sa_jobqueue.job.id
            FROM sa_jobqueue.job
            WHERE sa_jobqueue.job.id = any(sa_jobqueue.wait.jobs) AND sa_jobqueue.job.status IN ('queued', 'blocked', 'running')
            ORDER BY sa_jobqueue.job.id
            LIMIT 20
        )
    ) END AS job_ids,
        CASE WHEN (sa_jobqueue.wait.until < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (sa_jobqueue.wait.until > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE sa_jobqueue.wait.until END AS until,
        CAST(NULL AS FLOAT) AS seconds,
        CASE WHEN (sa_jobqueue.wait.signal IS NULL) THEN sa_jobqueue.wait.step ELSE left(sa_jobqueue.wait.question ->> %(question_1)s::TEXT, %(left_1)s::INTEGER) END AS reason,
        CASE WHEN (sa_jobqueue.wait.since < timestamptz '0001-01-02 00:00+00') THEN timestamptz '0001-01-02 00:00+00' WHEN (sa_jobqueue.wait.since > timestamptz '9999-12-30 00:00+00') THEN timestamptz '9999-12-30 00:00+00' ELSE sa_jobqueue.wait.since END AS since
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.job_id = %(job_id)s::BIGINT
    AND sa_jobqueue.wait.resumed_at IS NULL
    AND (EXISTS (
        SELECT 1
        FROM sa_jobqueue.job AS me
        WHERE me.id = %(job_id)s::BIGINT
        AND me.status = 'blocked'
    ))
) AS found
ORDER BY found.place,
    found.owner,
    found.key NULLS FIRST
