SELECT date_part('epoch', now()) >= %(param_1)s::BIGINT AS expired,
    EXISTS (
    SELECT 1
    FROM sa_jobqueue.inbox
    WHERE sa_jobqueue.inbox.key = %(key_1)s::VARCHAR COLLATE "C"
) AS used,
    (
    SELECT sa_jobqueue.wait.question
    FROM sa_jobqueue.wait
    WHERE sa_jobqueue.wait.signal = %(signal_1)s::VARCHAR COLLATE "C"
    AND sa_jobqueue.wait.resumed_at IS NULL
    ORDER BY sa_jobqueue.wait.since
    LIMIT 1
) AS question
