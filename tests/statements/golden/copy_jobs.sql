INSERT INTO sa_jobqueue.job (task, args, queue, priority, max_attempts, run_at, meta, uniqueness, expires_at, deadline_at, concurrency_key, units, subject_type, subject_id, extras)
SELECT sa_jobqueue.job.task,
    sa_jobqueue.job.args,
    sa_jobqueue.job.queue,
    sa_jobqueue.job.priority,
    sa_jobqueue.job.max_attempts,
    now() + %(delay_seconds)s * interval '1 second' AS anon_1,
    sa_jobqueue.job.meta,
    sa_jobqueue.job.uniqueness - '{on_clash,replace,max_wait}'::text[] AS anon_2,
    CASE WHEN (sa_jobqueue.job.expires_at > sa_jobqueue.job.created_at) THEN now() + (sa_jobqueue.job.expires_at - sa_jobqueue.job.created_at) ELSE NULL END AS anon_3,
    CASE WHEN (sa_jobqueue.job.deadline_at > sa_jobqueue.job.created_at) THEN now() + (sa_jobqueue.job.deadline_at - sa_jobqueue.job.created_at) ELSE NULL END AS anon_4,
    CASE WHEN (sa_jobqueue.job.concurrency_key >= chr(2)) THEN sa_jobqueue.job.concurrency_key ELSE NULL END AS anon_5,
    sa_jobqueue.job.units,
    sa_jobqueue.job.subject_type,
    sa_jobqueue.job.subject_id,
    sa_jobqueue.job.extras
FROM sa_jobqueue.job
WHERE sa_jobqueue.job.inputs IS NULL
AND sa_jobqueue.job.task != '(gate)'
AND sa_jobqueue.job.id = %(id_1)s::BIGINT
ORDER BY sa_jobqueue.job.uniqueness ->> 'key',
    sa_jobqueue.job.id
RETURNING sa_jobqueue.job.id,
    sa_jobqueue.job.duplicate_of
