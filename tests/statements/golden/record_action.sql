INSERT INTO sa_jobqueue.audit (count, action, who, target) VALUES (%(count)s::BIGINT, %(action)s::VARCHAR, %(who)s::VARCHAR, %(target)s::JSONB)
RETURNING sa_jobqueue.audit.id
