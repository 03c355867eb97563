INSERT INTO sa_jobqueue.job_limit (owner, name, paused_at, pause_reason) VALUES (%(owner)s::VARCHAR, %(name)s::VARCHAR, now(), %(pause_reason)s::VARCHAR) ON CONFLICT (owner, name) DO
UPDATE
SET paused_at = coalesce(sa_jobqueue.job_limit.paused_at, now()),
    pause_reason = excluded.pause_reason
RETURNING sa_jobqueue.job_limit.name
