SELECT steps.at AS step,
    sa_jobqueue.backlog.queue,
    sa_jobqueue.backlog.due,
    sa_jobqueue.backlog.running,
    sa_jobqueue.backlog.oldest,
    sa_jobqueue.backlog.more
FROM generate_series(%(begin)s::TIMESTAMP WITH TIME ZONE, %(until)s::TIMESTAMP WITH TIME ZONE, %(step)s) AS steps(at)
JOIN LATERAL (
    SELECT counted.at AS at
    FROM sa_jobqueue.backlog AS counted
    WHERE counted.queue = ''
    AND counted.at >= steps.at
    AND counted.at < steps.at + %(step)s
    ORDER BY counted.at DESC
    LIMIT 1
) AS last ON true
JOIN sa_jobqueue.backlog ON sa_jobqueue.backlog.at = last.at
WHERE sa_jobqueue.backlog.queue IN (__[POSTCOMPILE_queue_1])
ORDER BY steps.at
