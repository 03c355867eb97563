SELECT count(*) AS rows,
    coalesce(EXTRACT(epoch FROM now() - min("over".purge_at)), %(coalesce_1)s::INTEGER) AS seconds
FROM (
    SELECT greatest(sa_jobqueue.job.purge_at, timestamptz '0002-01-01 00:00:00+00') AS purge_at
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.purge_at <= now()
    ORDER BY sa_jobqueue.job.purge_at
    LIMIT %(cap)s::INTEGER
) AS "over"
