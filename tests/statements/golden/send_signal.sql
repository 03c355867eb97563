INSERT INTO sa_jobqueue.signal (expires_at, name, payload) VALUES ((now() + make_interval(%(make_interval_1)s::INTEGER, %(make_interval_2)s::INTEGER, %(make_interval_3)s::INTEGER, %(make_interval_4)s::INTEGER, %(make_interval_5)s::INTEGER, %(make_interval_6)s::INTEGER, %(make_interval_7)s)), %(name)s::VARCHAR COLLATE "C", %(payload)s::JSONB)
RETURNING sa_jobqueue.signal.id
