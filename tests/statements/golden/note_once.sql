INSERT INTO sa_jobqueue.inbox (key) VALUES (%(key)s::VARCHAR COLLATE "C") ON CONFLICT DO NOTHING
RETURNING sa_jobqueue.inbox.key
