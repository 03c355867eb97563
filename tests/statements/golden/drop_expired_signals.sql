DELETE
FROM sa_jobqueue.signal
WHERE sa_jobqueue.signal.id = any(array((
        SELECT sa_jobqueue.signal.id
        FROM sa_jobqueue.signal
        WHERE sa_jobqueue.signal.expires_at <= now()
        LIMIT %(page)s::INTEGER
        FOR UPDATE SKIP LOCKED
    )
))
RETURNING 1
