SELECT recent.queue,
    recent.number,
    greatest(date_part('epoch', now() - CASE WHEN (sum(recent.number) OVER () < %(cap)s::INTEGER) THEN now() + %(within_seconds)s * interval '1 second' ELSE min(recent.first) OVER () END), 1.0) AS seconds
FROM (
    SELECT last.queue AS queue,
        count(*) AS number,
        min(last.created_at) AS first
    FROM (
        SELECT sa_jobqueue.job.queue AS queue,
            sa_jobqueue.job.created_at AS created_at
        FROM sa_jobqueue.job
        ORDER BY sa_jobqueue.job.id DESC
        LIMIT %(cap)s::INTEGER
    ) AS last
    WHERE last.created_at >= now() + %(within_seconds)s * interval '1 second'
    GROUP BY last.queue
) AS recent
ORDER BY recent.queue
