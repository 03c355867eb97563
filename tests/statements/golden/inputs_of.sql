SELECT found.child_id,
    CASE WHEN NOT found.too_much THEN found.position END AS position,
    found.policy,
    found.parent_id,
    found.status,
    CASE WHEN NOT found.too_much THEN found.result END AS result,
    CASE WHEN NOT found.too_much THEN found.error END AS error
FROM (
    SELECT anon_1.id AS child_id,
        input.position AS position,
        input.policy AS policy,
        input.parent_id AS parent_id,
        input.status AS status,
        input.result AS result,
        input.error AS error,
        count(*) OVER (PARTITION BY anon_1.id) > 10
    OR coalesce(sum(octet_length(input.result)) OVER (PARTITION BY anon_1.id), %(coalesce_1)s::INTEGER) > 100 AS too_much,
        row_number() OVER (PARTITION BY anon_1.id ORDER BY input.position) AS number
    FROM unnest(CAST(%(child_ids)s::VARCHAR AS BIGINT[])) AS anon_1(id)
    JOIN LATERAL (
        SELECT sa_jobqueue.workflow_dependency.position AS position,
            sa_jobqueue.workflow_dependency.policy AS policy,
            sa_jobqueue.workflow_dependency.parent_id AS parent_id,
            sa_jobqueue.job.status AS status,
            CAST(sa_jobqueue.job.result AS TEXT) AS result,
            CASE WHEN (sa_jobqueue.job.status != 'completed') THEN CAST(sa_jobqueue.job.errors -> -1 AS TEXT) END AS error
        FROM sa_jobqueue.workflow_dependency
        LEFT OUTER JOIN sa_jobqueue.job ON sa_jobqueue.job.id = sa_jobqueue.workflow_dependency.parent_id
        WHERE sa_jobqueue.workflow_dependency.child_id = anon_1.id
        AND sa_jobqueue.workflow_dependency.position IS NOT NULL
        ORDER BY sa_jobqueue.workflow_dependency.position
        LIMIT %(most)s::INTEGER
    ) AS input ON true
) AS found
WHERE NOT found.too_much
OR found.number = %(number_1)s::INTEGER
ORDER BY found.child_id,
    found.position
