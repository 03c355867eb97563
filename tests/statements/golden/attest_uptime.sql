WITH tried AS (
    UPDATE sa_jobqueue.job
    SET lease_expires_at=now()
    WHERE false
),
    known AS (
    SELECT sa_jobqueue.uptime.since AS since,
        sa_jobqueue.uptime.until AS until
    FROM sa_jobqueue.uptime
    WHERE sa_jobqueue.uptime.lease = %(lease_ms)s::BIGINT
),
    attested AS (INSERT INTO sa_jobqueue.uptime (lease, since, until) SELECT %(lease_ms)s::BIGINT AS anon_1, coalesce((
        SELECT known.since
        FROM known
        WHERE known.until BETWEEN now() - %(outage)s * interval '1 second'
        AND now() + %(outage)s * interval '1 second'
    ),
        now()
) AS coalesce_1, now() AS now_1 WHERE NOT (EXISTS (
    SELECT *
    FROM known
    WHERE known.until BETWEEN now() - %(outage)s * interval '1 second' * 0.25
    AND now()
)) ON CONFLICT (lease) DO UPDATE SET since = excluded.since, until = excluded.until RETURNING sa_jobqueue.uptime.since)
SELECT coalesce((
        SELECT attested.since
        FROM attested
    ),
        (
        SELECT known.since
        FROM known
    )
) <= now() - %(lease_seconds)s * interval '1 second' AS attested
