SELECT sa_jobqueue.audit.id,
    sa_jobqueue.audit.at,
    sa_jobqueue.audit.who,
    sa_jobqueue.audit.action,
    sa_jobqueue.audit.target,
    sa_jobqueue.audit.count
FROM sa_jobqueue.audit
WHERE sa_jobqueue.audit.id < %(id_1)s::BIGINT
AND sa_jobqueue.audit.who = %(who_1)s::VARCHAR
AND sa_jobqueue.audit.action = %(action_1)s::VARCHAR
ORDER BY sa_jobqueue.audit.id DESC
LIMIT %(param_1)s::INTEGER
