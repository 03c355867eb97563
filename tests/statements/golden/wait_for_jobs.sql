INSERT INTO sa_jobqueue.awaited (job_id, waiter, expires_at)
SELECT wanted.id,
    %(of_waiter)s::UUID AS anon_1,
    now() + %(wait_seconds)s * interval '1 second' AS anon_2
FROM unnest(CAST(%(awaited_ids)s::VARCHAR AS BIGINT[])) AS wanted(id)
ORDER BY wanted.id ON CONFLICT (job_id, waiter) DO
UPDATE
SET expires_at = excluded.expires_at
