INSERT INTO sa_jobqueue.job_limit (owner, name, running, rate_count, rate_seconds, rate_burst, strict, held) VALUES (%(owner)s::VARCHAR, %(name)s::VARCHAR, %(running)s::INTEGER, %(rate_count)s::INTEGER, %(rate_seconds)s, %(rate_burst)s::INTEGER, %(strict)s, true) ON CONFLICT (owner, name) DO
UPDATE
SET running = excluded.running,
    rate_count = excluded.rate_count,
    rate_seconds = excluded.rate_seconds,
    rate_burst = excluded.rate_burst,
    strict = excluded.strict,
    held = excluded.held
RETURNING sa_jobqueue.job_limit.name
