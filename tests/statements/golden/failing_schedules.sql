SELECT sa_jobqueue.schedule.id
FROM sa_jobqueue.schedule
WHERE sa_jobqueue.schedule.id = any(CAST(%(schedule_ids)s::VARCHAR AS BIGINT[]))
AND (
    SELECT count(*) FILTER (WHERE last.status = 'failed') AS anon_1
    FROM (
        SELECT sa_jobqueue.job.status AS status
        FROM sa_jobqueue.job
        WHERE sa_jobqueue.job.schedule_id = sa_jobqueue.schedule.id
        AND sa_jobqueue.job.finished_at >= sa_jobqueue.schedule.counts_from
        ORDER BY sa_jobqueue.job.finished_at DESC
        LIMIT sa_jobqueue.schedule.pause_after
    ) AS last
) >= sa_jobqueue.schedule.pause_after
