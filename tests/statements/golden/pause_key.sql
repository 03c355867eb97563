INSERT INTO sa_jobqueue.job_key (owner, name, key, paused_at, pause_reason) VALUES (%(owner)s::VARCHAR, %(name)s::VARCHAR, %(key)s::VARCHAR COLLATE "C", now(), %(pause_reason)s::VARCHAR) ON CONFLICT (owner, name, key) DO
UPDATE
SET paused_at = coalesce(sa_jobqueue.job_key.paused_at, now()),
    pause_reason = excluded.pause_reason
RETURNING sa_jobqueue.job_key.name
