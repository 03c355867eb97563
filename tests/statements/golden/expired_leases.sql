SELECT sa_jobqueue.job.id,
    sa_jobqueue.job.claim_token,
    sa_jobqueue.job.task,
    sa_jobqueue.job.queue,
    sa_jobqueue.job.attempt,
    sa_jobqueue.job.max_attempts,
    sa_jobqueue.job.rescues,
    CASE WHEN (sa_jobqueue.job.uniqueness IS NULL AND sa_jobqueue.job.expires_at IS NULL AND sa_jobqueue.job.deadline_at IS NULL AND sa_jobqueue.job.tick_at IS NULL AND sa_jobqueue.job.workflow_id IS NULL AND sa_jobqueue.job.inputs IS NULL AND sa_jobqueue.job.extras IS NULL AND sa_jobqueue.job.extras IS NULL) THEN NULL WHEN (sa_jobqueue.job.uniqueness IS NULL AND sa_jobqueue.job.expires_at IS NULL AND sa_jobqueue.job.deadline_at IS NULL AND sa_jobqueue.job.tick_at IS NULL AND sa_jobqueue.job.inputs IS NULL AND sa_jobqueue.job.extras IS NULL AND sa_jobqueue.job.extras IS NULL) THEN concat('{"workflow": ', sa_jobqueue.job.workflow_id, '}') ELSE CAST(jsonb_strip_nulls(jsonb_build_object('unique', CASE WHEN (sa_jobqueue.job.uniqueness IS NOT NULL) THEN coalesce(to_jsonb(CASE WHEN ((sa_jobqueue.job.uniqueness ->> 'scope') = 'queued') THEN sa_jobqueue.job.uniqueness ->> 'key' END), 'true'::jsonb) END, 'expires', CASE WHEN (sa_jobqueue.job.attempt <= 1 AND sa_jobqueue.job.rescues = 0) THEN to_jsonb(date_part('epoch', sa_jobqueue.job.expires_at) - date_part('epoch', now())) END, 'deadline', to_jsonb(date_part('epoch', sa_jobqueue.job.deadline_at) - date_part('epoch', now())), 'tick', CASE WHEN (sa_jobqueue.job.tick_at IS NOT NULL) THEN jsonb_build_array(date_part('epoch', sa_jobqueue.job.tick_at), sa_jobqueue.job.ticks) END, 'workflow', sa_jobqueue.job.workflow_id, 'inputs', sa_jobqueue.job.inputs, 'version', CASE WHEN (jsonb_typeof(sa_jobqueue.job.extras -> 'version') = 'number') THEN left(sa_jobqueue.job.extras ->> 'version', 8) WHEN (jsonb_typeof(sa_jobqueue.job.extras -> 'version') IS NOT NULL) THEN '?' END, 'follows', CASE WHEN (sa_jobqueue.job.extras ? 'on_success') THEN 'true'::jsonb END)) AS TEXT) END AS extra,
    sa_jobqueue.job.worker,
    date_part('epoch', sa_jobqueue.job.claimed_at) AS claimed_at,
    date_part('epoch', now()) - date_part('epoch', sa_jobqueue.job.lease_expires_at) AS overdue
FROM sa_jobqueue.job
WHERE sa_jobqueue.job.status = 'running'
AND (sa_jobqueue.job.lease_expires_at IS NULL OR sa_jobqueue.job.lease_expires_at <= now())
AND sa_jobqueue.job.id > %(after_id)s::BIGINT
ORDER BY sa_jobqueue.job.id
LIMIT %(page)s::INTEGER
