DELETE
FROM sa_jobqueue.awaited
WHERE sa_jobqueue.awaited.expires_at <= now()
