SELECT count(*) AS number,
    count(*) FILTER (WHERE sa_jobqueue.schedule.due_at < now() + %(seen_seconds)s * interval '1 second') AS behind,
    count(*) FILTER (WHERE sa_jobqueue.schedule.error IS NOT NULL) AS failing,
    coalesce(date_part('epoch', now() - (min(sa_jobqueue.schedule.due_at) FILTER (WHERE sa_jobqueue.schedule.due_at < now() + %(seen_seconds)s * interval '1 second'))), 0.0) AS seconds
FROM sa_jobqueue.schedule
WHERE sa_jobqueue.schedule.paused_at IS NULL
