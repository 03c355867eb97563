INSERT INTO sa_jobqueue.job_key (owner, name, key, rate_count, rate_seconds, rate_burst, weight) VALUES (%(owner)s::VARCHAR, %(name)s::VARCHAR, %(key)s::VARCHAR COLLATE "C", %(rate_count)s::INTEGER, %(rate_seconds)s, %(rate_burst)s::INTEGER, %(weight)s::SMALLINT) ON CONFLICT (owner, name, key) DO
UPDATE
SET rate_count = excluded.rate_count,
    rate_seconds = excluded.rate_seconds,
    rate_burst = excluded.rate_burst,
    weight = excluded.weight
RETURNING sa_jobqueue.job_key.name
