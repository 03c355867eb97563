SELECT sa_jobqueue.schedule.id,
    sa_jobqueue.schedule.name,
    sa_jobqueue.schedule.expression,
    sa_jobqueue.schedule.timezone,
    sa_jobqueue.schedule.missed,
    sa_jobqueue.schedule.catch_up,
    sa_jobqueue.schedule.overlap,
    sa_jobqueue.schedule.jitter,
    sa_jobqueue.schedule.pause_after,
    sa_jobqueue.schedule.task,
    sa_jobqueue.schedule.args,
    sa_jobqueue.schedule.queue,
    sa_jobqueue.schedule.priority,
    sa_jobqueue.schedule.max_attempts,
    sa_jobqueue.schedule.meta,
    sa_jobqueue.schedule.uniqueness,
    sa_jobqueue.schedule.expires_in,
    sa_jobqueue.schedule.deadline,
    sa_jobqueue.schedule.concurrency_key,
    sa_jobqueue.schedule.units,
    sa_jobqueue.schedule.extras,
    sa_jobqueue.schedule.created_at,
    sa_jobqueue.schedule.counts_from,
    sa_jobqueue.schedule.next_at,
    sa_jobqueue.schedule.due_at,
    sa_jobqueue.schedule.last_tick_at,
    sa_jobqueue.schedule.waiting_since,
    sa_jobqueue.schedule.left_out,
    sa_jobqueue.schedule.paused_at,
    sa_jobqueue.schedule.paused_by,
    sa_jobqueue.schedule.pause_reason,
    sa_jobqueue.schedule.error,
    sa_jobqueue.schedule.declared_at,
    sa_jobqueue.schedule.declared,
    sa_jobqueue.schedule.definitions,
    last.id AS job_id,
    last.status AS job_status,
    last.created_at AS job_created_at,
    last.finished_at AS job_finished_at,
    now() AS now
FROM sa_jobqueue.schedule
LEFT OUTER JOIN LATERAL (
    SELECT sa_jobqueue.job.id AS id,
        sa_jobqueue.job.status AS status,
        sa_jobqueue.job.created_at AS created_at,
        sa_jobqueue.job.finished_at AS finished_at
    FROM sa_jobqueue.job
    WHERE sa_jobqueue.job.schedule_id = sa_jobqueue.schedule.id
    ORDER BY sa_jobqueue.job.finished_at DESC,
        sa_jobqueue.job.id DESC
    LIMIT 1
) AS last ON true
ORDER BY sa_jobqueue.schedule.name
